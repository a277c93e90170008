#pragma once

namespace mdops {

// Device memory at this address will be read.
__device__ __forceinline__ void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

}  // namespace mdops
