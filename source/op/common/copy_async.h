// Copies from device to shared memory that go on by themselves (cp.async), without registers between.
#pragma once

#include <cstdint>

namespace mdops {

// 4, 8 or 16 bytes; zeros if not `there`.
template <int Bytes>
__device__ __forceinline__ void copy_to_shared(void* shared, const void* from, bool there) {
  const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(there ? Bytes : 0),
                 "n"(Bytes)
                 : "memory");
}

// This thread's copies have come.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
// This thread's copies so far are one group;
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// all of its groups but the last `Pending` have come.
template <int Pending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

}  // namespace mdops
