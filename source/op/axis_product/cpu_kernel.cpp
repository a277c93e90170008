// Rows of D by whole vectors, which may reach into the next row: that one is written later.
#include <algorithm>

#include "axis_product/axis_product.h"
#include "common/some_lanes.h"

namespace mdops {
namespace MDOPS_ISA {

namespace {

constexpr int kColumns = 64;  // of a row of G^T at once

// Of an atom, whose T has Rows rows, or any number of them for 0.
template <int Rows, class T>
void features(const AxisArgs<T>& args, int64_t i) {
  const int rows = Rows ? Rows : args.rows, width = args.width, axis = args.axis;
  const int64_t size = args.d_size();
  const T* const t = args.t + i * args.t_size();
  T* const d = args.out + i * args.row_size();
  for (int l = 0; l < axis; l += kLanes<T>) {
    const int count = std::min(kLanes<T>, axis - l);
    const bool reads = l + kLanes<T> <= width, last = l + kLanes<T> >= axis;
    const auto few = [&](int a) {
      const T* const from = t + a * width + l;
      return reads ? vector_at(from) : SomeLanes<T, false>{width - l}.load(from);
    };
    Vector<T> right[Rows ? Rows : 1];
    for (int a = 0; a < Rows; ++a) right[a] = few(a);
    for (int k = 0; k < width; ++k) {
      Vector<T> sum{};
      for (int a = 0; a < rows; ++a) sum += t[a * width + k] * (Rows ? right[Rows ? a : 0] : few(a));
      const int64_t at = static_cast<int64_t>(k) * axis + l;
      if (count == kLanes<T> || (last && l == 0 && at + kLanes<T> <= size))
        store(d + at, sum);
      else
        SomeLanes<T, false>{count}.store(d + at, sum);
    }
  }
  for (int64_t k = 0; k < args.more; ++k) d[size + k] = args.behind[i * args.more + k];
}

template <int Rows, class T>
void gradients(const AxisArgs<T>& args, int64_t i) {
  const int rows = Rows ? Rows : args.rows, width = args.width, axis = args.axis;
  const T *const t = args.t + i * args.t_size(), *const g = args.grad + i * args.row_size();
  T* const out = args.out + i * args.t_size();
  T column[kColumns];
  for (int first = 0; first < width; first += kColumns) {
    const int columns = std::min(kColumns, width - first);
    for (int l = 0; l < axis; ++l) {
      for (int k = 0; k < columns; ++k) column[k] = g[static_cast<int64_t>(first + k) * axis + l];
      for (int a = 0; a < rows; ++a) {
        T* __restrict const to = out + a * width + first;
        const T by = t[a * width + l];
        if (l)
          for (int k = 0; k < columns; ++k) to[k] += by * column[k];
        else
          for (int k = 0; k < columns; ++k) to[k] = by * column[k];
      }
    }
  }
  for (int l = 0; l < axis; l += kLanes<T>) {
    const int count = std::min(kLanes<T>, axis - l);
    constexpr int kSums = Rows ? Rows : 1;
    for (int first = 0; first < rows; first += kSums) {
      Vector<T> sums[kSums] = {};
      for (int k = 0; k < width; ++k) {
        const int64_t at = static_cast<int64_t>(k) * axis + l;
        const Vector<T> row =
            at + kLanes<T> <= args.row_size() ? vector_at(g + at) : SomeLanes<T, false>{count}.load(g + at);
        for (int a = 0; a < kSums; ++a) sums[a] += t[(first + a) * width + k] * row;
      }
      for (int a = 0; a < kSums; ++a)
        for (int c = 0; c < count; ++c) out[(first + a) * width + l + c] += sums[a][c];
    }
  }
}

// work<Rows>() of the T of Deep Potentials' descriptors, and of those of edges; work<0>() of others.
template <class Work>
void with_rows(int rows, const Work& work) {
  if (rows == 4)
    work.template operator()<4>();
  else if (rows == 3)
    work.template operator()<3>();
  else
    work.template operator()<0>();
}

}  // namespace

#define MDOPS_DEFINE(T)                                                      \
  void axis_features(const AxisArgs<T>& args, int64_t begin, int64_t end) {  \
    with_rows(args.rows, [&]<int Rows>() {                                   \
      for (int64_t i = begin; i < end; ++i) features<Rows>(args, i);         \
    });                                                                      \
  }                                                                          \
  void axis_gradients(const AxisArgs<T>& args, int64_t begin, int64_t end) { \
    with_rows(args.rows, [&]<int Rows>() {                                   \
      for (int64_t i = begin; i < end; ++i) gradients<Rows>(args, i);        \
    });                                                                      \
  }
MDOPS_DEFINE(float)
MDOPS_DEFINE(double)
#undef MDOPS_DEFINE

}  // namespace MDOPS_ISA
}  // namespace mdops
