// The gradients of a net's matrices, sums over all atoms of a type, for one instruction set:
//   dL/dW = sum over the rows of  x^T adjoint_z + dx^T delta.
// A unit is some rows of one matrix, so that threads share the work and no sums: the features (l, k), k >= l,
// for one l, the further inputs, or kUnit inputs of a later layer.
#pragma once

#include "spline_training/rows.h"

namespace mdops {
namespace MDOPS_ISA {

constexpr int64_t kUnit = 48;
constexpr int64_t kDepth = 128;  // atoms at once: their right factors stay in cache

// One thread's memory for a unit.
template <class T>
struct UnitMemory {
  int64_t sum_stride, left_stride;
  T *sum, *left, *right;

  UnitMemory(const FittingShape& net, Arena& arena) {
    const int64_t most = net.width > net.extra ? net.width : net.extra;
    sum_stride = widest_layer<T>(net);
    left_stride = padded<T>(net.width) + 2 * kLanes<T>;
    sum = arena.take<T>(((most > kUnit ? most : kUnit) + 2 * kRows) * sum_stride);
    left = arena.take<T>(kDepth * left_stride);
    right = arena.take<T>(kDepth * sum_stride);
  }
};

// Adds left^T right to the unit's sum: `left(row)` is a pointer to what the unit has of that row, rows apart
// by `stride`.
template <class T>
inline void add_product(const UnitMemory<T>& m, int64_t inputs, int64_t cols, int64_t depth, const T* left,
                        int64_t stride, const RowArray<T>& right, int64_t row, bool accumulate) {
  for (int64_t k = 0; k < depth; ++k) pack_row<T>(depth, cols, k, right.at(row + k), nullptr, m.right);
  gemm<T, Left::by_depth>(padded_rows(inputs), depth, cols, left, stride, m.right, m.sum, m.sum_stride,
                          accumulate);
}

// Calls work(row, depth, is_first) for chunks of the rows [begin, end).
template <class Work>
inline void for_chunks(int64_t begin, int64_t end, const Work& work) {
  for (int64_t row = begin; row < end; row += kDepth)
    work(row, end - row < kDepth ? end - row : kDepth, row == begin);
}

template <class T>
inline void store_rows(const UnitMemory<T>& m, int64_t row, int64_t cols, T* to) {
  for (int64_t c = 0; c < cols; ++c) to[c] = m.sum[row * m.sum_stride + c];
}

template <class T>
inline void feature_unit(const FittingShape& net, const TrainingRows<T>& r, int l, int64_t begin, int64_t end,
                         const UnitMemory<T>& m, T* weight) {
  const int64_t cols = net.neurons[0], inputs = net.width - l;
  for_chunks(begin, end, [&](int64_t row, int64_t depth, bool is_first) {
    for (int64_t k = 0; k < depth; ++k) {
      const T* t = r.t.at(row + k);
      form_row(net, t, r.t_width, Column<T>(t, r.t_width, l).c, l, m.left + k * m.left_stride);
    }
    add_product(m, inputs, cols, depth, m.left, m.left_stride, r.adjoint_z[0], row, !is_first);
    for (int64_t k = 0; k < depth; ++k) {
      const T *t = r.t.at(row + k), *dt = r.dt.at(row + k);
      form_row(net, t, r.t_width, Column<T>(dt, r.t_width, l).c, l, m.left + k * m.left_stride);
      form_row(net, dt, r.t_width, Column<T>(t, r.t_width, l).c, l, m.left + k * m.left_stride, true);
    }
    add_product(m, inputs, cols, depth, m.left, m.left_stride, r.delta[0], row, true);
  });
  for (int64_t k = l; k < net.width; ++k) {
    store_rows(m, k - l, cols, weight + (k * net.axis + l) * cols);
    if (k < net.axis && k != l) store_rows(m, k - l, cols, weight + (l * net.axis + k) * cols);
  }
}

template <class T>
inline void extra_unit(const FittingShape& net, const TrainingRows<T>& r, int64_t begin, int64_t end,
                       const UnitMemory<T>& m, T* weight) {
  const int64_t cols = net.neurons[0];
  for_chunks(begin, end, [&](int64_t row, int64_t depth, bool is_first) {
    add_product(m, net.extra, cols, depth, r.extra.at(row), r.extra.width, r.adjoint_z[0], row, !is_first);
  });
  for (int64_t k = 0; k < net.extra; ++k)
    store_rows(m, k, cols, weight + (static_cast<int64_t>(net.width) * net.axis + k) * cols);
}

template <class T>
inline void layer_unit(const FittingShape& net, const TrainingRows<T>& r, int n, int64_t first, int64_t begin,
                       int64_t end, const UnitMemory<T>& m, T* weight) {
  const int64_t cols = net.neurons[n], left = net.neurons[n - 1] - first,
                inputs = left < kUnit ? left : kUnit;
  for_chunks(begin, end, [&](int64_t row, int64_t depth, bool is_first) {
    add_product(m, inputs, cols, depth, r.y[n - 1].at(row) + first, r.layer_stride(), r.adjoint_z[n], row,
                !is_first);
    add_product(m, inputs, cols, depth, r.dy[n - 1].at(row) + first, r.layer_stride(), r.delta[n], row, true);
  });
  for (int64_t k = 0; k < inputs; ++k) store_rows(m, k, cols, weight + (first + k) * cols);
}

// Calls feature(l), extra() or layer(n, first input) for a unit, or none of them for a negative one; returns
// the number of all units.
template <class Feature, class Extra, class Layer>
inline int64_t with_unit(const FittingShape& net, int64_t unit, const Feature& feature, const Extra& extra,
                         const Layer& layer) {
  int64_t count = 0;
  for (int l = 0; l < net.axis; ++l)
    if (unit == count++) feature(l);
  if (net.extra)
    if (unit == count++) extra();
  for (int n = 1; n < net.layers; ++n)
    for (int64_t first = 0; first < net.neurons[n - 1]; first += kUnit)
      if (unit == count++) layer(n, first);
  return count;
}

}  // namespace MDOPS_ISA
}  // namespace mdops
