// Instructions of a warp that nets and their tiles are made of: fragments from shared memory, products by the
// tensor cores, copies that go on by themselves.
#pragma once

#include <cstdint>

#include "common/copy_async.h"

namespace mdops {

// The shared memory that a net's kernel is launched with.
__device__ __forceinline__ char* net_memory() {
  extern __shared__ __align__(16) char memory_of_net[];
  return memory_of_net;
}

__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ __forceinline__ void load_fragment(uint32_t (&a)[4], const void* shared) {
  const uint32_t at = shared_address(shared);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(at));
}

__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Sixteen bytes from device to shared memory, without registers between; zeros if not `there`.
__device__ __forceinline__ void copy_async(uint32_t shared, const float* from, bool there = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}

}  // namespace mdops
