// Arguments of a net on a GPU, for its own kernels and for those that write its input.
#pragma once

#include "gemm/gpu_parts.h"

namespace mdops {

// The place of a row of the input, and the bound of its numbers. All lanes of a warp must call it.
template <int Parts>
MDOPS_D InputRow<Parts> begin_row(const NetArgs& p, int64_t row, float bound) {
  for (int k = lane_index(); k < 1 + 2 * p.net.layers; k += kWarp)
    p.bounds[k * static_cast<int64_t>(p.rows) + row] = k == 0 ? bound : 0.0f;
  return InputRow<Parts>(p.inputs, p.net.inputs, p.tile_rows, row, bound);
}

}  // namespace mdops
