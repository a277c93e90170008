// Rows of pairs on a GPU: which row and slot a thread works on, and coalesced stores of three numbers a lane.
#pragma once

#include <cstdint>

namespace mdops {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ int lane_index() {
  return threadIdx.x % kWarp;
}

// out[3 k + a] = v[a] of lane k, for k < lanes, as consecutive stores; `buffer` holds 3 * kWarp numbers of
// this warp in shared memory. All lanes must call it.
template <class T>
__device__ __forceinline__ void store_triples(const T* v, T* buffer, T* out, int lanes) {
  const int lane = lane_index();
  __syncwarp();
  for (int a = 0; a < 3; ++a) buffer[3 * lane + a] = v[a];
  __syncwarp();
  for (int k = lane; k < 3 * lanes; k += kWarp) out[k] = buffer[k];
}

}  // namespace mdops
