// Asynchronous copies from device to shared memory, without registers: cp.async, and Hopper's bulk copies,
// whose bytes a barrier counts (gpu_barrier.h).
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {

MDOPS_D uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Copies 4, 8 or 16 bytes: reads the first `count`, the rest is zero.
template <int Bytes>
MDOPS_D void copy_to_shared(uint32_t shared, const void* from, int count) {
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(count)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared), "l"(from), "r"(count),
                 "n"(Bytes)
                 : "memory");
}
// Zeros if not `in_bounds`.
template <int Bytes>
MDOPS_D void copy_to_shared(uint32_t shared, const void* from, bool in_bounds) {
  copy_to_shared<Bytes>(shared, from, in_bounds ? Bytes : 0);
}
template <int Bytes>
MDOPS_D void copy_to_shared(void* shared, const void* from, bool in_bounds) {
  copy_to_shared<Bytes>(shared_address(shared), from, in_bounds);
}

// Waits until this thread's copies are complete.
MDOPS_D void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
// This thread's copies so far become one group;
MDOPS_D void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// waits until all of its groups but the last `Pending` are complete.
template <int Pending>
MDOPS_D void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Copies `bytes`, which the barrier counts on arrival.
MDOPS_D void copy_bulk(uint32_t shared, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

}  // namespace mdops
