// A net's matrices for products by bfloat16 units.
#pragma once

#include "gemm/bf16.h"
#include "gemm/net.h"

namespace mdops {

// Says where the matrices of a net stand in `memory`, packs them there if `write`, and returns their size in
// numbers. groups(work) calls work(features, weights) for the groups of features of the first layer, weights
// (features, neurons[0]).
template <class T, class Groups>
int64_t bf16_net(const NetShape& shape, const DenseLayer<T>* layers, int parts, const Groups& groups,
                 uint16_t* memory, bool write, Bf16Net* net) {
  int64_t used = 0;
  // The matrix of weights (inputs, outputs) itself, or transposed.
  const auto matrix = [&](const T* weights, int64_t inputs, int64_t outputs, bool up) {
    uint16_t* const to = memory ? memory + used : nullptr;
    const int64_t rows = up ? outputs : inputs, depth = up ? inputs : outputs;
    if (write)
      pack_bf16(
          rows, depth, parts,
          [&](int64_t row, int64_t k) {
            return static_cast<float>(up ? weights[k * outputs + row] : weights[row * outputs + k]);
          },
          to);
    used += bf16_size(rows, depth, parts);
    return static_cast<const uint16_t*>(to);
  };
  const int64_t cols = shape.neurons[0];
  for (const bool up : {true, false}) {
    (up ? net->groups_up : net->groups_down) = memory ? memory + used : nullptr;
    groups([&](int64_t features, const T* weights) { matrix(weights, features, cols, up); });
  }
  if (shape.extra)
    net->extra_up =
        matrix(write ? layers[0].weight + shape.features * cols : nullptr, shape.extra, cols, true);
  for (int n = 1; n < shape.layers; ++n) {
    const T* weights = write ? layers[n].weight : nullptr;
    net->up[n] = matrix(weights, shape.neurons[n - 1], shape.neurons[n], true);
    net->down[n] = matrix(weights, shape.neurons[n - 1], shape.neurons[n], false);
  }
  net->parts = parts, net->multiply = bf16_multiply();
  return used;
}

}  // namespace mdops
