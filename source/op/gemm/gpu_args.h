// What a net on a GPU takes, for its own kernels and for those that write its input.
#pragma once

#include "gemm/gpu_parts.h"

namespace mdops {

// Rows of a net's input, in tiles of one net each, on the way to the net's output and its gradient.
struct NetArgs {
  const int32_t* tile_type;  // of each tile: whose net, -1 where no row counts
  const float* nets;         // (types, net_size), packed
  int64_t net_size;
  const double* scale;  // (types,): the gradient is that of scale * output
  GpuNetShape net;
  int rows;        // at most, whole tiles: what the arrays below have
  float* inputs;   // (rows, net.inputs), as InputRow<input_parts> writes them; then their gradient, as floats
  float* bounds;   // (1 + 2 layers, rows) of the numbers of every product's A: the input's; zeros at first
  double* output;  // (rows, output_parts): their sum is the output, without its bias
};

// Where a row of the input goes, and the bound of its numbers. All lanes of a warp must call it.
template <int Parts>
__device__ __forceinline__ InputRow<Parts> begin_row(const NetArgs& p, int64_t row, float bound) {
  for (int k = lane_index(); k < 1 + 2 * p.net.layers; k += kWarp)
    p.bounds[k * static_cast<int64_t>(p.rows) + row] = k == 0 ? bound : 0.0f;
  return InputRow<Parts>(p.inputs, p.net.inputs, row, bound);
}

}  // namespace mdops
