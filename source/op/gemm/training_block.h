// Shared code of a net's training passes and the ops that run them.
#pragma once

#include "gemm/net.h"

namespace mdops {

// Atoms that a thread processes together, in the lanes [lane, lane + lanes) of memory.
struct LaneBlock {
  int64_t count, lane, lanes;
};

// Lanes of a block: whole cache lines, so that arrays of any number of rows follow each other without gaps.
template <class T>
int64_t block_lanes(int64_t count) {
  constexpr int64_t line = 64 / sizeof(T);
  return (count + line - 1) / line * line;
}

// Where the vectors of one net are in an array.
struct NetVectors {
  int64_t bias[kMaxLayers], timestep[kMaxLayers], out_weight, out_bias, size = 0;

  explicit NetVectors(const NetShape& net) {
    for (int n = 0; n < net.layers; ++n) {
      bias[n] = take(net.neurons[n]);
      timestep[n] = take(net.neurons[n]);
    }
    out_weight = take(net.neurons[net.layers - 1]);
    out_bias = take(1);
  }

 private:
  int64_t take(int64_t elements) {
    size += elements;
    return size - elements;
  }
};

}  // namespace mdops
