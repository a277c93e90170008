// A net's matrices for products by bfloat16 units.
#pragma once

#include <vector>

#include "gemm/bf16.h"
#include "gemm/net.h"

namespace mdops {

// One of the matrices.
struct Bf16Matrix : Bf16Weights {
  uint16_t* to;
};

// Where the matrices of a net are in an array, and how to fill it.
template <class T>
struct Bf16Layout {
  std::vector<Bf16Matrix> matrices;
  int64_t size = 0;

  // groups(work) calls work(features, weights) for the groups of features of the first layer, weights
  // (features, neurons[0]). Sets the pointers of `net`, unless there is no memory yet.
  Bf16Layout(const NetShape& shape, const DenseLayer<T>* layers, int parts, const auto& groups,
             uint16_t* memory, Bf16Net* net) {
    const auto place = [&](const T* weights, int64_t inputs, int64_t outputs, bool up) {
      if constexpr (sizeof(T) == 4)  // other types have none
        matrices.push_back({{weights, inputs, outputs, up}, memory ? memory + size : nullptr});
      else
        matrices.push_back({{nullptr, inputs, outputs, up}, nullptr});
      size += kBf16Tile * parts * matrices.back().tiles();
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
    net->parts = parts, net->units = bf16_units();
  }

  // Tiles [begin, end) of all matrices.
  void pack(int64_t begin, int64_t end, int parts) const {
    int64_t first = 0;
    for (const Bf16Matrix& matrix : matrices) {
      const int64_t count = matrix.tiles(), from = begin > first ? begin - first : 0;
      const int64_t to = end - first < count ? end - first : count;
      if (from < to) bf16_units()->pack(matrix, from, to, parts, matrix.to);
      first += count;
    }
  }
  int64_t tiles() const {
    int64_t count = 0;
    for (const Bf16Matrix& matrix : matrices) count += matrix.tiles();
    return count;
  }
};

}  // namespace mdops
