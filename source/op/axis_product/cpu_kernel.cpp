// Rows of D by whole vectors, which may overlap the next row: that one is written later.
#include <algorithm>

#include "axis_product/axis_product.h"
#include "common/panels.h"
#include "common/some_lanes.h"

namespace mdops::MDOPS_ISA {

namespace {

// For an atom whose T has Rows rows, or any number of them for 0.
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

// A vector's number of rows of G, of which each has numbers from l on in lanes: of T's columns, and of its
// first ones.
template <int Rows, class T>
void gradients(const AxisArgs<T>& args, int64_t i) {
  constexpr int kMost = Rows ? Rows : 1;
  const int rows = Rows ? Rows : args.rows, width = args.width, axis = args.axis;
  const T *const t = args.t + i * args.t_size(), *const g = args.grad + i * args.row_size();
  T* const out = args.out + i * args.t_size();
  for (int first = 0; first < rows; first += kMost)
    for (int l = 0; l < axis; l += kLanes<T>) {
      const int count = std::min(kLanes<T>, axis - l);
      Vector<T> few[kMost] = {};
      for (int k = 0; k < width; k += kLanes<T>) {
        const int columns = std::min(kLanes<T>, width - k);
        Vector<T> block[kLanes<T>] = {};
        for (int c = 0; c < columns; ++c) {
          const int64_t at = static_cast<int64_t>(k + c) * axis + l;
          block[c] =
              at + kLanes<T> <= args.row_size() ? vector_at(g + at) : SomeLanes<T, false>{count}.load(g + at);
          for (int a = 0; a < kMost; ++a) few[a] += t[(first + a) * width + k + c] * block[c];
        }
        exchange<T, kLanes<T> / 2>(block, std::make_integer_sequence<int, kLanes<T>>());
        const SomeLanes<T, false> lanes{columns};
        const auto to = [&](int a) { return out + (first + a) * width + k; };
        Vector<T> sums[kMost] = {};
        for (int a = 0; l && a < kMost; ++a) sums[a] = lanes.load(to(a));
        for (int c = 0; c < count; ++c)
          for (int a = 0; a < kMost; ++a) sums[a] += t[(first + a) * width + l + c] * block[c];
        for (int a = 0; a < kMost; ++a) lanes.store(to(a), sums[a]);
      }
      for (int a = 0; a < kMost; ++a)
        for (int c = 0; c < count; ++c) out[(first + a) * width + l + c] += few[a][c];
    }
}

// Calls work<Rows>() for T of Deep Potentials' descriptors, and of edges' ones; work<0>() for others.
void with_rows(int rows, const auto& work) {
  if (rows == 4)
    work.template operator()<4>();
  else if (rows == 3)
    work.template operator()<3>();
  else
    work.template operator()<0>();
}

}  // namespace

template <class T>
void axis_features(const AxisArgs<T>& args, int64_t begin, int64_t end) {
  with_rows(args.rows, [&]<int Rows>() {
    for (int64_t i = begin; i < end; ++i) features<Rows>(args, i);
  });
}

template <class T>
void axis_gradients(const AxisArgs<T>& args, int64_t begin, int64_t end) {
  with_rows(args.rows, [&]<int Rows>() {
    for (int64_t i = begin; i < end; ++i) gradients<Rows>(args, i);
  });
}

MDOPS_INSTANTIATE(axis_features, axis_gradients)

}  // namespace mdops::MDOPS_ISA
