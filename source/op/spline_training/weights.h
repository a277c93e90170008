// The gradients of a net's matrices, sums over all atoms of a type, for one instruction set:
//   dL/dW = sum over the atoms of  x^T adjoint_z + dx^T delta.
// A unit is some rows of one matrix, so that threads share the work and no sums: a group of features, the
// further inputs, or kUnit inputs of a later layer.
#pragma once

#include "spline_training/arrays.h"

namespace mdops {
namespace MDOPS_ISA {

constexpr int64_t kUnit = 48, kUnitFeatures = 64;

// One thread's memory for a unit.
template <class T>
struct UnitMemory {
  T *sum, *left;

  UnitMemory(const FittingShape& net, Arena& arena) {
    int64_t rows = most_features(net, kUnitFeatures), cols = 0;
    if (net.extra > rows) rows = net.extra;
    for (int n = 0; n < net.layers; ++n)
      if (padded<T>(net.neurons[n]) > cols) cols = padded<T>(net.neurons[n]);
    sum = arena.take<T>(rows * cols);
    left = arena.take<T>(rows * kBlock);
  }
};

// A type's blocks, and a unit's memory.
template <class T>
struct WeightSums {
  const FittingShape& net;
  const TrainingArrays<T>& r;
  const TrainingBlock* blocks;
  int64_t count;
  UnitMemory<T> memory;

  Panels<T> sum(int64_t rows, int n) const { return {memory.sum, rows, padded<T>(net.neurons[n])}; }

  // sum (+)= left^T right over a block's atoms.
  void add(const Panels<T>& sum, const Panels<T>& left, const BlockArray<T>& right,
           const TrainingBlock& block, bool accumulate) const {
    gemm(sum.rows, block.count, InLanes<T>{left}, right.across(block), sum, accumulate);
  }
};

template <class T>
inline void feature_unit(const WeightSums<T>& s, const Group& group, T* weight) {
  const FittingShape& net = s.net;
  const Panels<T> sum = s.sum(group.features, 0);
  for (int64_t k = 0; k < s.count; ++k) {
    const TrainingBlock& block = s.blocks[k];
    const Panels<T> t = s.r.t.of(block), left{s.memory.left, group.features, block.lanes};
    form_group(net, t, group, left);
    s.add(sum, left, s.r.adjoint_z[0], block, k > 0);
    form_tangent(net, t, s.r.dt.of(block), group, left);
    s.add(sum, left, s.r.delta[0], block, true);
  }
  int64_t row = 0;
  for (int k = group.first; k < group.last; ++k)
    for (int l = 0; l < net.row_features(k); ++l, ++row) {
      store_row(sum, row, net.neurons[0], weight + (k * net.axis + l) * net.neurons[0]);
      if (k < net.axis && l < k)
        store_row(sum, row, net.neurons[0], weight + (l * net.axis + k) * net.neurons[0]);
    }
}

template <class T>
inline void extra_unit(const WeightSums<T>& s, T* weight) {
  const Panels<T> sum = s.sum(s.net.extra, 0);
  for (int64_t k = 0; k < s.count; ++k)
    s.add(sum, s.r.extra.of(s.blocks[k]), s.r.adjoint_z[0], s.blocks[k], k > 0);
  for (int64_t k = 0; k < s.net.extra; ++k)
    store_row(sum, k, s.net.neurons[0], weight + (int64_t(s.net.width) * s.net.axis + k) * s.net.neurons[0]);
}

template <class T>
inline void layer_unit(const WeightSums<T>& s, int n, int64_t first, T* weight) {
  const int64_t left = s.net.neurons[n - 1] - first, inputs = left < kUnit ? left : kUnit;
  const Panels<T> sum = s.sum(inputs, n);
  for (int64_t k = 0; k < s.count; ++k) {
    const TrainingBlock& block = s.blocks[k];
    s.add(sum, s.r.y[n - 1].of(block).from(first), s.r.adjoint_z[n], block, k > 0);
    s.add(sum, s.r.dy[n - 1].of(block).from(first), s.r.delta[n], block, true);
  }
  for (int64_t k = 0; k < inputs; ++k)
    store_row(sum, k, s.net.neurons[n], weight + (first + k) * s.net.neurons[n]);
}

// Calls feature(group), extra() or layer(n, first input) for a unit, or none of them for a negative one;
// returns the number of all units.
template <class Feature, class Extra, class Layer>
inline int64_t with_unit(const FittingShape& net, int64_t unit, const Feature& feature, const Extra& extra,
                         const Layer& layer) {
  int64_t count = 0;
  each_group(net, kUnitFeatures, [&](const Group& group, int64_t) {
    if (unit == count++) feature(group);
  });
  if (net.extra)
    if (unit == count++) extra();
  for (int n = 1; n < net.layers; ++n)
    for (int64_t first = 0; first < net.neurons[n - 1]; first += kUnit)
      if (unit == count++) layer(n, first);
  return count;
}

}  // namespace MDOPS_ISA
}  // namespace mdops
