// The smallest distance that the lanes of a warp have met.
#pragma once

#include "common/gpu_warp.h"
#include "env_mat/env_mat.h"

namespace mdops {

// Over each `Lanes` lanes side by side, in all of them; what is not a number if any is.
template <int Lanes = kWarp, class T>
__device__ __forceinline__ T warp_nearest(T distance) {
  return join_lanes<Lanes>(distance, [](T a, T b) { return nearest_of(a, b); });
}

}  // namespace mdops
