#pragma once

namespace mdops {

// Prefetches device memory at this address to the L2 cache.
__device__ __forceinline__ void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

}  // namespace mdops
