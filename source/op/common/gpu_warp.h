// Warps: a thread's lane, and sums, maxima and running sums over lanes. All lanes must call functions that
// exchange numbers. The order of the terms is fixed: the same bits in every run.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

MDOPS_D int lane_index() {
  return threadIdx.x % kWarp;
}

// The thread's warp, as a number that the compiler knows to be uniform: branches on it are uniform, and what
// follows from it (above all addresses of a warpgroup's operands) is computed once per warp, in registers
// that `wgmma` reads directly.
MDOPS_D int warp_index() {
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
}

// Combines the numbers of all lanes by join(x, y), two at a time; within each `Lanes` adjacent lanes, a power
// of two. All get the same result.
template <int Lanes = kWarp, class T, class Join>
MDOPS_D T join_lanes(T x, const Join& join) {
#pragma unroll
  for (int step = Lanes / 2; step; step /= 2) x = join(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

template <int Lanes = kWarp, class T>
MDOPS_D T warp_sum(T x) {
  return join_lanes<Lanes>(x, [](T a, T b) { return a + b; });
}

// Ignores NaN.
template <int Lanes = kWarp, class T>
MDOPS_D T warp_largest(T x) {
  return join_lanes<Lanes>(x, [](T a, T b) { return max(a, b); });
}
MDOPS_D uint32_t warp_largest(uint32_t x) {
  return __reduce_max_sync(kAllLanes, x);
}

// Over the four lanes that share a row of a tensor core's product.
template <class T>
MDOPS_D T quad_sum(T x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}
template <class T>
MDOPS_D T quad_largest(T x) {
  x = max(x, __shfl_xor_sync(kAllLanes, x, 1));
  return max(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// The sum of the numbers of the lanes up to this one.
template <class T>
MDOPS_D T running_sum(T x) {
  const int lane = lane_index();
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const T other = __shfl_up_sync(kAllLanes, x, step);
    if (lane >= step) x += other;
  }
  return x;
}

// The sum of the numbers of the threads before this one in a block of `Warps` warps, and that of all. All
// threads must call it; `of_warps` is shared memory for a number a warp.
template <int Warps, class T>
MDOPS_D T sum_before(T mine, T* of_warps, T* total) {
  const int warp = threadIdx.x / kWarp;
  const T sum = running_sum(mine);
  if (lane_index() == kWarp - 1) of_warps[warp] = sum;
  __syncthreads();
  T before = 0, all = 0;
  for (int w = 0; w < Warps; ++w) {
    if (w < warp) before += of_warps[w];
    all += of_warps[w];
  }
  __syncthreads();
  *total = all;
  return before + sum - mine;
}

}  // namespace mdops
