#pragma once

#include "common/math.h"

namespace mdops {

// Prefetches device memory at this address to the L2 cache.
MDOPS_D void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

}  // namespace mdops
