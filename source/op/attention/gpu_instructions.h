// The instructions of a warp that attention's tensor-core kernels use, each in a function: matrices from
// shared memory, products of 16-bit numbers, the largest of 32 numbers.
#pragma once

#include "attention/gpu_args.h"
#include "gemm/gpu_parts.h"
#include "gemm/gpu_tile.h"

namespace mdops {
namespace gpu_attention {

// The shared memory that the launch asks for.
__device__ __forceinline__ char* block_memory() {
  extern __shared__ __align__(128) char attention_memory[];
  return attention_memory;
}

// Four matrices of 8 x 8 numbers of 16 bits, lane l giving row l % 8 of matrix l / 8: lane l gets numbers
// 2 (l % 4) and the next of row l / 4 of each.
__device__ __forceinline__ void load_four(uint32_t (&r)[4], const char* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared)));
}

// The same of each matrix transposed.
__device__ __forceinline__ void load_four_transposed(uint32_t (&r)[4], const char* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared)));
}

// c += A B, 16 x 16 times 16 x 8, of float16 or bfloat16.
template <bool Bfloat>
__device__ __forceinline__ void multiply_16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (Bfloat)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Bytes (4 or 16) from device to shared memory, without registers between; zeros if not `there`.
template <int Bytes>
__device__ __forceinline__ void copy_to_shared(void* shared, const void* from, bool there) {
  if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(from),
                 "r"(there ? 4 : 0)
                 : "memory");
}
// This thread's copies have come.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

__device__ __forceinline__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The number, of which the compiler knows nothing.
__device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Asks for a line of device memory to be brought to the L2 cache.
__device__ __forceinline__ void prefetch_line(const void* memory) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(memory));
}

// Of the warp's numbers.
__device__ __forceinline__ uint32_t warp_largest(uint32_t x) {
  return __reduce_max_sync(kAllLanes, x);
}

}  // namespace gpu_attention
}  // namespace mdops
