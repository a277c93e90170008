// The first layer's weights in the order of the features.
#pragma once

#include "common/rows.h"
#include "spline_potential/gpu_args.h"

namespace mdops {

// out (inputs, neurons), from weights (width * axis + extra, neurons) in DeePMD-kit's order k * M2 + l: D is
// symmetric in its first M2 rows, and the weights of two equal features are added.
static __global__ void fold_kernel(const float* weight, int width, int axis, int extra, int neurons,
                                   float* out) {
  const Features features(width, axis);
  const int f = blockIdx.x, count = features.count();
  int l = 0;
  while (l + 1 < axis && f >= features.row(l + 1) + Features::first(l + 1)) ++l;
  const int k = f - (f < count ? features.row(l) : count);
  for (int col = threadIdx.x; col < neurons; col += blockDim.x) {
    const auto at = [&](int64_t row) { return weight[row * neurons + col]; };
    float sum = 0;
    if (f >= count) {
      if (k < extra) sum = at(static_cast<int64_t>(width) * axis + k);
    } else if (k >= l && k < width) {
      sum = at(static_cast<int64_t>(k) * axis + l);
      if (k < axis && k != l) sum += at(static_cast<int64_t>(l) * axis + k);
    }
    out[static_cast<int64_t>(f) * neurons + col] = sum;
  }
}

}  // namespace mdops
