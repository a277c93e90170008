// A net's matrices for products by bfloat16 units.
#pragma once

#include <vector>

#include "gemm/bf16.h"
#include "gemm/net.h"

namespace mdops {

// One of them: weights (inputs, outputs) themselves, or transposed, on the way up.
template <class T>
struct Bf16Matrix {
  const T* weights;
  int64_t inputs, outputs;
  bool up;
  uint16_t* to;

  void pack(int parts) const {
    const auto at = [&](int64_t row, int64_t k) {
      return static_cast<float>(up ? weights[k * outputs + row] : weights[row * outputs + k]);
    };
    up ? pack_bf16(outputs, inputs, parts, at, to) : pack_bf16(inputs, outputs, parts, at, to);
  }
};

// Where the matrices of a net stand in an array, and how to fill it.
template <class T>
struct Bf16Layout {
  std::vector<Bf16Matrix<T>> matrices;
  int64_t size = 0;

  // groups(work) calls work(features, weights) for the groups of features of the first layer, weights
  // (features, neurons[0]). Sets the pointers of `net`, unless there is no memory yet.
  template <class Groups>
  Bf16Layout(const NetShape& shape, const DenseLayer<T>* layers, int parts, const Groups& groups,
             uint16_t* memory, Bf16Net* net) {
    const auto place = [&](const T* weights, int64_t inputs, int64_t outputs, bool up) {
      matrices.push_back({weights, inputs, outputs, up, memory ? memory + size : nullptr});
      size += up ? bf16_size(outputs, inputs, parts) : bf16_size(inputs, outputs, parts);
      return static_cast<const uint16_t*>(matrices.back().to);
    };
    const int64_t cols = shape.neurons[0];
    for (const bool up : {true, false}) {
      (up ? net->groups_up : net->groups_down) = memory ? memory + size : nullptr;
      groups([&](int64_t features, const T* weights) { place(weights, features, cols, up); });
    }
    if (shape.extra)
      net->extra_up =
          place(memory ? layers[0].weight + shape.features * cols : nullptr, shape.extra, cols, true);
    for (int n = 1; n < shape.layers; ++n) {
      net->up[n] = place(layers[n].weight, shape.neurons[n - 1], shape.neurons[n], true);
      net->down[n] = place(layers[n].weight, shape.neurons[n - 1], shape.neurons[n], false);
    }
    net->parts = parts, net->multiply = bf16_multiply();
  }
};

}  // namespace mdops
