// The instructions of a warp that attention's tensor-core kernels use, each in a function: matrices from
// shared memory, products of 16-bit numbers, the largest of 32 numbers.
#pragma once

#include "attention/gpu_args.h"
#include "common/gpu_barrier.h"
#include "common/gpu_copy.h"
#include "common/gpu_mma.h"
#include "common/gpu_power.h"
#include "common/gpu_wgmma.h"
#include "gemm/gpu_parts.h"
#include "gemm/gpu_tile.h"

namespace mdops::gpu_attention {

// The launch's dynamic shared memory.
MDOPS_D char* block_memory() {
  extern __shared__ __align__(128) char attention_memory[];
  return attention_memory;
}

// The same from a multiple of 1,024 on; the launch requests as many more bytes.
constexpr int kAlignment = 1024;
MDOPS_D char* aligned_memory() {
  char* const memory = block_memory();
  return memory + (-reinterpret_cast<uintptr_t>(memory) & (kAlignment - 1));
}

// Hides a number's value from the compiler.
MDOPS_D int opaque(int x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Prefetches a line of device memory into the L2 cache.
MDOPS_D void prefetch_line(const void* memory) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(memory));
}

// d (+)= A B, 64 x 16 times 16 x 32 or 64, of float16 or bfloat16. Of d warp w of the group has rows 16 w ..
// + 15, as of m16n8k16. The depth runs along the matrices' rows (of 16 numbers of a row), or where `Across`
// from row to row. The macro takes the registers of d in the instruction, and the places of A, B, `add` and
// `Across`.
#define MDOPS_MULTIPLY(number, columns, of_d, at_a, at_b, at_add, at_across, ...)          \
  MDOPS_ON_HOPPER("{\n.reg .pred add;\nsetp.ne.b32 add, " at_add                           \
                  ", 0;\n"                                                                 \
                  "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." number "." number \
                  " "                                                                      \
                  "{" of_d "}, " at_a ", " at_b ", add, 1, 1, " at_across ", " at_across   \
                  ";\n}" : __VA_ARGS__ : "l"(a),                                           \
                  "l"(b), "r"(static_cast<int>(add)), "n"(Across ? 1 : 0))
#define MDOPS_MULTIPLY_32(number) \
  MDOPS_MULTIPLY(number, "32", MDOPS_REGISTERS_16, "%16", "%17", "%18", "%19", MDOPS_4_UNITS(0))
#define MDOPS_MULTIPLY_64(number)                                                                \
  MDOPS_MULTIPLY(number, "64", MDOPS_REGISTERS_32, "%32", "%33", "%34", "%35", MDOPS_4_UNITS(0), \
                 MDOPS_4_UNITS(4))

template <bool Bfloat, bool Across, int Units>
MDOPS_D void multiply_group(float (&d)[Units][4], uint64_t a, uint64_t b, bool add) {
  static_assert(Units == 4 || Units == 8);
  if constexpr (Units == 4 && Bfloat)
    MDOPS_MULTIPLY_32("bf16");
  else if constexpr (Units == 4)
    MDOPS_MULTIPLY_32("f16");
  else if constexpr (Bfloat)
    MDOPS_MULTIPLY_64("bf16");
  else
    MDOPS_MULTIPLY_64("f16");
}
#undef MDOPS_MULTIPLY
#undef MDOPS_MULTIPLY_32
#undef MDOPS_MULTIPLY_64

// The same with A as of m16n8k16, of each warp its 16 rows, and B 16 x 32, 64 or 128: the registers of d in
// the instruction, the four of A, then the places of B, `add` and `Across`.
#define MDOPS_MULTIPLY(number, columns, of_d, of_a, at_b, at_add, at_across, ...)          \
  MDOPS_ON_HOPPER("{\n.reg .pred add;\nsetp.ne.b32 add, " at_add                           \
                  ", 0;\n"                                                                 \
                  "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." number "." number \
                  " "                                                                      \
                  "{" of_d "},  {" of_a "}, " at_b ", add, 1, 1, " at_across               \
                  ";\n}" : __VA_ARGS__ : "r"(a[0]),                                        \
                  "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(Across ? 1 : 0))
#define MDOPS_MULTIPLY_32(number)                                                             \
  MDOPS_MULTIPLY(number, "32", MDOPS_REGISTERS_16, "%16, %17, %18, %19", "%20", "%21", "%22", \
                 MDOPS_4_UNITS(0))
#define MDOPS_MULTIPLY_64(number)                                                             \
  MDOPS_MULTIPLY(number, "64", MDOPS_REGISTERS_32, "%32, %33, %34, %35", "%36", "%37", "%38", \
                 MDOPS_4_UNITS(0), MDOPS_4_UNITS(4))
#define MDOPS_MULTIPLY_128(number)                                                             \
  MDOPS_MULTIPLY(number, "128", MDOPS_REGISTERS_64, "%64, %65, %66, %67", "%68", "%69", "%70", \
                 MDOPS_4_UNITS(0), MDOPS_4_UNITS(4), MDOPS_4_UNITS(8), MDOPS_4_UNITS(12))

template <bool Bfloat, bool Across, int Units>
MDOPS_D void multiply_group(float (&d)[Units][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  static_assert(Units == 4 || Units == 8 || Units == 16);
  if constexpr (Units == 4 && Bfloat)
    MDOPS_MULTIPLY_32("bf16");
  else if constexpr (Units == 4)
    MDOPS_MULTIPLY_32("f16");
  else if constexpr (Units == 8 && Bfloat)
    MDOPS_MULTIPLY_64("bf16");
  else if constexpr (Units == 8)
    MDOPS_MULTIPLY_64("f16");
  else if constexpr (Bfloat)
    MDOPS_MULTIPLY_128("bf16");
  else
    MDOPS_MULTIPLY_128("f16");
}

#undef MDOPS_MULTIPLY
#undef MDOPS_MULTIPLY_32
#undef MDOPS_MULTIPLY_64
#undef MDOPS_MULTIPLY_128

// Calls f(part of A, part of B, whether it is the first) for the products of parts: the small ones first.
template <int Parts, class F>
MDOPS_D void each_product(const F& f) {
  if constexpr (Parts == 2) {
    f(1, 0, true), f(0, 1, false), f(0, 0, false);
  } else {
    f(0, 0, true);
  }
}

}  // namespace mdops::gpu_attention
