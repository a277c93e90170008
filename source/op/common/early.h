// Kernels that begin before the previous one has ended (Gpu::launch_early): their launch costs and loads of
// constants overlap with it.
#pragma once

#include "common/math.h"

namespace mdops {

// Waits until the previous kernel has ended and its writes are visible, and lets the next one begin. Every
// thread of a kernel that is launched early must call it, before it writes to device memory or reads results
// of the previous kernel. So loads before it may see the results of the last but one.
MDOPS_D void follow_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace mdops
