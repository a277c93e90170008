// Kernels that begin before the one before them has ended (Gpu::launch_early): what their launches cost, and
// what they read of constants, goes on meanwhile.
#pragma once

namespace mdops {

// Waits until the kernel before has ended and what it wrote is seen, and lets the one after begin. Every
// thread of a kernel that is launched early calls it, whatever it does else, before it writes to device
// memory or reads what the kernel before wrote. So what a kernel reads ahead of it may be the work of the
// last but one.
__device__ __forceinline__ void follow_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace mdops
