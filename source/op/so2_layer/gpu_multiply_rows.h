// Products of warpgroups (wgmma) whose rows are in registers, which only Hopper has (sm_90a).
#pragma once

#include "common/gpu_wgmma.h"

namespace mdops {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// d (+)= kSign A B, kSign 1 or -1, 64 x 16 times 16 x 32, 64 or 96, of float16. Each warp has 16 rows of A as
// in m16n8k16; B is in shared memory. In lane l of warp w (of four), d[4 j + 2 h + c] is
// row 16 w + 8 h + l / 4, column 8 j + 2 (l % 4) + c.
//
// Operands `A`, `B`, `Add` and `Sign` follow d's registers. The last two arguments are the registers' names
// and operands.
#define MDOPS_MULTIPLY_ROWS(Columns, A, B, Add, Sign, Names, ...)                                      \
  template <int kSign = 1>                                                                             \
  MDOPS_D void multiply_rows(float (&d)[Columns / 2], const uint32_t (&a)[4], uint64_t b, int add) {   \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #Add                                         \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #Columns "k16.f32.f16.f16 {" Names "}, {" A \
                 "}, %" #B ", add, %" #Sign ", 1, 0;\n}"                                               \
                 : __VA_ARGS__                                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(kSign));          \
  }

MDOPS_MULTIPLY_ROWS(32, "%16, %17, %18, %19", 20, 21, 22, MDOPS_REGISTERS_16, MDOPS_NUMBERS_16("+f", d, 0))
MDOPS_MULTIPLY_ROWS(64, "%32, %33, %34, %35", 36, 37, 38, MDOPS_REGISTERS_32, MDOPS_NUMBERS_32("+f", d, 0))
MDOPS_MULTIPLY_ROWS(96, "%48, %49, %50, %51", 52, 53, 54, MDOPS_REGISTERS_48, MDOPS_NUMBERS_32("+f", d, 0),
                    MDOPS_NUMBERS_16("+f", d, 32))
#undef MDOPS_MULTIPLY_ROWS

#endif

}  // namespace mdops
