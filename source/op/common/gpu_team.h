// A warp as a team (common/team.h).
#pragma once

#include <cstdint>

#include "common/gpu_warp.h"

namespace mdops {

struct WarpTeam {
  template <class F>
  __device__ __forceinline__ void each(int64_t count, const F& f) const {
    for (int64_t k = lane_index(); k < count; k += kWarp) f(k);
  }
  template <class T>
  __device__ __forceinline__ T sum(T value) const {
    return warp_sum(value);
  }
  template <class T>
  __device__ __forceinline__ T max(T value) const {
    return join_lanes(value, [](T a, T b) { return a < b ? b : a; });
  }
};

}  // namespace mdops
