// The gradients of a net's matrices, sums over all atoms of a type, for one instruction set:
//   dL/dW = sum over the atoms of  x^T adjoint_z + dx^T delta.
// A unit is some rows of one matrix, so that threads share the work and no sums: a group of features, the
// further inputs, or kUnit inputs of a later layer.
#pragma once

#include "gemm/training.h"

namespace mdops::MDOPS_ISA {

constexpr int64_t kUnit = 48, kUnitFeatures = 64;

// One thread's memory for a unit.
template <class T>
struct UnitMemory {
  T *sum, *left;

  // For groups of at most `features`, and blocks of at most `lanes`.
  UnitMemory(const NetShape& net, int64_t features, int64_t lanes, Arena& arena) {
    int64_t rows = features > kUnit ? features : kUnit, cols = 0;
    if (net.extra > rows) rows = net.extra;
    for (int n = 0; n < net.layers; ++n)
      if (padded<T>(net.neurons[n]) > cols) cols = padded<T>(net.neurons[n]);
    sum = arena.take<T>(rows * cols);
    left = arena.take<T>(rows * lanes);
  }
};

// A type's blocks, block(k) for k < count, and a unit's memory.
template <class T, class Block>
struct WeightSums {
  const NetShape& net;
  const NetArrays<T>& arrays;
  const Block* blocks;
  int64_t count;
  UnitMemory<T> memory;

  Panels<T> sum(int64_t rows, int n) const { return {memory.sum, rows, padded<T>(net.neurons[n])}; }

  // sum (+)= left^T right over a block's atoms.
  void add(const Panels<T>& sum, const Panels<T>& left, const BlockArray<T>& right, const LaneBlock& block,
           bool accumulate) const {
    gemm(sum.rows, block.count, InLanes<T>{left}, right.across(block), sum, accumulate);
  }
};

// The sum of some features' rows of the first matrix: form(block, left) and form_tangent(block, left) make
// them and their tangents.
template <class T, class Block, class Form, class Tangent>
inline Panels<T> feature_sum(const WeightSums<T, Block>& s, int64_t features, const Form& form,
                             const Tangent& form_tangent) {
  const Panels<T> sum = s.sum(features, 0);
  for (int64_t k = 0; k < s.count; ++k) {
    const Block& block = s.blocks[k];
    const Panels<T> left{s.memory.left, features, block.lanes};
    form(block, left);
    s.add(sum, left, s.arrays.adjoint_z[0], block, k > 0);
    form_tangent(block, left);
    s.add(sum, left, s.arrays.delta[0], block, true);
  }
  return sum;
}

template <class T, class Block>
inline void extra_unit(const WeightSums<T, Block>& s, T* weight) {
  const Panels<T> sum = s.sum(s.net.extra, 0);
  for (int64_t k = 0; k < s.count; ++k)
    s.add(sum, s.arrays.extra.of(s.blocks[k]), s.arrays.adjoint_z[0], s.blocks[k], k > 0);
  for (int64_t k = 0; k < s.net.extra; ++k)
    store_row(sum, k, s.net.neurons[0], weight + (s.net.features + k) * s.net.neurons[0]);
}

template <class T, class Block>
inline void layer_unit(const WeightSums<T, Block>& s, int n, int64_t first, T* weight) {
  const int64_t left = s.net.neurons[n - 1] - first, inputs = left < kUnit ? left : kUnit;
  const Panels<T> sum = s.sum(inputs, n);
  for (int64_t k = 0; k < s.count; ++k) {
    const Block& block = s.blocks[k];
    s.add(sum, s.arrays.y[n - 1].of(block).from(first), s.arrays.adjoint_z[n], block, k > 0);
    s.add(sum, s.arrays.dy[n - 1].of(block).from(first), s.arrays.delta[n], block, true);
  }
  for (int64_t k = 0; k < inputs; ++k)
    store_row(sum, k, s.net.neurons[n], weight + (first + k) * s.net.neurons[n]);
}

// Calls feature(group), extra() or layer(n, first input) for a unit, or none of them for a negative one;
// returns the number of all units. each_group(work) calls work(group, before) for the groups of features.
inline int64_t with_unit(const NetShape& net, int64_t unit, const auto& each_group, const auto& feature,
                         const auto& extra, const auto& layer) {
  int64_t count = 0;
  each_group([&](const auto& group, int64_t) {
    if (unit == count++) feature(group);
  });
  if (net.extra)
    if (unit == count++) extra();
  for (int n = 1; n < net.layers; ++n)
    for (int64_t first = 0; first < net.neurons[n - 1]; first += kUnit)
      if (unit == count++) layer(n, first);
  return count;
}

}  // namespace mdops::MDOPS_ISA
