// Instructions that only Hopper has (sm_90a): barriers that count bytes, bulk copies into shared memory, and
// the products of warpgroups (wgmma) of operands in shared memory. gpu_shape.h
// draws the operands.
#pragma once

#include <cstdint>

#include "common/warpgroup.h"
#include "gemm/gpu_tile.h"

namespace mdops {

constexpr int kGroupThreads = 128, kGroupWarps = 4;  // of a warpgroup

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void init_barrier(uint32_t at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals));
}

__device__ __forceinline__ void expect_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void wait_for(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE;\nbra AGAIN;\nDONE:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Bytes to shared memory; the barrier counts them when they have come.
__device__ __forceinline__ void copy_bulk(uint32_t shared, const void* from, int bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// All threads of both of the block's warpgroups that multiply.
__device__ __forceinline__ void sync_groups() {
  asm volatile("bar.sync 3, %0;" ::"n"(2 * kGroupThreads) : "memory");
}

// All threads of one of them.
__device__ __forceinline__ void sync_group(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kGroupThreads) : "memory");
}

// Rows of 128 bytes from `shared` on, swizzled, eight of them 1,024 bytes apart from the next eight.
__device__ __forceinline__ uint64_t wide_matrix(uint32_t shared) {
  return 1ull << 62 | 64ull << 32 | 1ull << 16 | (shared & 0x3ffff) >> 4;
}

// Waits for the products; the numbers are not looked at before.
template <int Size>
__device__ __forceinline__ void end_products(float (&d)[Size]) {
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int k = 0; k < Size; ++k) asm volatile("" : "+f"(d[k])::"memory");
}

// d (+)= A B, 64 x 16 times 16 x 32, 48, 64, 96, 120 or 128. Of d thread t has, for its warp w (of four) and
// lane l of it, d[4 j + 2 h + c]: row 16 w + 8 h + l / 4, column 8 j + 2 (l % 4) + c.
#define MDOPS_FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MDOPS_SIXTEEN(i) MDOPS_FOUR(i), MDOPS_FOUR(i + 4), MDOPS_FOUR(i + 8), MDOPS_FOUR(i + 12)

// Operands `A`, `B` and `Add` stand behind d's registers, whose names and operands the last two are.
#define MDOPS_MULTIPLY_UNIT(Columns, A, B, Add, Names, ...)                                                 \
  __device__ __forceinline__ void multiply_unit(float (&d)[Columns / 2], uint64_t a, uint64_t b, int add) { \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #Add                                              \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #Columns "k16.f32.f16.f16 {" Names "}, %" #A     \
                 ", %" #B ", add, 1, 1, 0, 0;\n}"                                                           \
                 : __VA_ARGS__                                                                              \
                 : "l"(a), "l"(b), "r"(add));                                                               \
  }
#define MDOPS_REGISTERS_24 MDOPS_REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define MDOPS_REGISTERS_48 \
  MDOPS_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define MDOPS_REGISTERS_60 MDOPS_REGISTERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59"

MDOPS_MULTIPLY_UNIT(32, 16, 17, 18, MDOPS_REGISTERS_16, MDOPS_SIXTEEN(0))
MDOPS_MULTIPLY_UNIT(48, 24, 25, 26, MDOPS_REGISTERS_24, MDOPS_SIXTEEN(0), MDOPS_FOUR(16), MDOPS_FOUR(20))
MDOPS_MULTIPLY_UNIT(64, 32, 33, 34, MDOPS_REGISTERS_32, MDOPS_SIXTEEN(0), MDOPS_SIXTEEN(16))
MDOPS_MULTIPLY_UNIT(96, 48, 49, 50, MDOPS_REGISTERS_48, MDOPS_SIXTEEN(0), MDOPS_SIXTEEN(16),
                    MDOPS_SIXTEEN(32))
MDOPS_MULTIPLY_UNIT(120, 60, 61, 62, MDOPS_REGISTERS_60, MDOPS_SIXTEEN(0), MDOPS_SIXTEEN(16),
                    MDOPS_SIXTEEN(32), MDOPS_FOUR(48), MDOPS_FOUR(52), MDOPS_FOUR(56))
MDOPS_MULTIPLY_UNIT(128, 64, 65, 66, MDOPS_REGISTERS_64, MDOPS_SIXTEEN(0), MDOPS_SIXTEEN(16),
                    MDOPS_SIXTEEN(32), MDOPS_SIXTEEN(48))

#undef MDOPS_REGISTERS_60
#undef MDOPS_REGISTERS_24
#undef MDOPS_REGISTERS_48
#undef MDOPS_MULTIPLY_UNIT
#undef MDOPS_SIXTEEN
#undef MDOPS_FOUR

#endif

}  // namespace mdops
