// The smallest distance in the lanes of a warp.
#pragma once

#include "common/gpu_warp.h"
#include "env_mat/env_mat.h"

namespace mdops {

// Over each `Lanes` adjacent lanes, in all of them; NaN if any is NaN.
template <int Lanes = kWarp, class T>
MDOPS_D T warp_nearest(T distance) {
  return join_lanes<Lanes>(distance, [](T a, T b) { return nearest_of(a, b); });
}

}  // namespace mdops
