// Sums over lanes of several numbers each; every lane keeps one.
#pragma once

#include "common/gpu_warp.h"

namespace mdops {

// The sum over kLanes adjacent lanes of kCount numbers each, a power of two up to kLanes: lane k of them gets
// that of number k / (kLanes / kCount).
template <int kLanes, int kCount, class T>
MDOPS_D T sum_over_lanes(T* numbers, int lane) {
  int count = kCount;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    if (count > 1) {
      count /= 2;
      const bool upper = lane & step;
#pragma unroll
      for (int k = 0; k < kCount / 2; ++k)
        if (k < count) {
          const T sent = upper ? numbers[k] : numbers[k + count];
          numbers[k] = (upper ? numbers[k + count] : numbers[k]) + __shfl_xor_sync(kAllLanes, sent, step);
        }
    } else {
      numbers[0] += __shfl_xor_sync(kAllLanes, numbers[0], step);
    }
  }
  return numbers[0];
}

}  // namespace mdops
