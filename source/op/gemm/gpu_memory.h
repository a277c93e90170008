// The shared memory of nets' kernels. The emulated GPU (scripts/gpu_emulator) has its own.
#pragma once

#include "common/math.h"

namespace mdops {

// The dynamic shared memory of a net's kernel.
MDOPS_D char* net_memory() {
  extern __shared__ __align__(16) char memory_of_net[];
  return memory_of_net;
}

}  // namespace mdops
