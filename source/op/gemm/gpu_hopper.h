// Products of warpgroups (wgmma) of nets, which only Hopper has (sm_90a), with operands in shared memory.
// gpu_shape.h shows the operands.
#pragma once

#include "common/gpu_barrier.h"
#include "common/gpu_wgmma.h"
#include "gemm/gpu_tile.h"

namespace mdops {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Synchronises both of the block's multiplying warpgroups.
MDOPS_D void sync_groups() {
  sync_threads(3, 2 * kGroupThreads);
}

// Synchronises one of them.
MDOPS_D void sync_group(int group) {
  sync_threads(group + 1, kGroupThreads);
}

// Waits for the products; the numbers are not read before.
template <int Size>
MDOPS_D void end_products(float (&d)[Size]) {
  commit_products();
  wait_for_products<0>();
  fence_operands(d);
}

// d (+)= A B, 64 x 16 times 16 x 32, 48, 64, 96, 120 or 128. Of d thread t has, for its warp w (of four) and
// lane l of it, d[4 j + 2 h + c]: row 16 w + 8 h + l / 4, column 8 j + 2 (l % 4) + c.
//
// Operands `A`, `B` and `Add` stand behind d's registers, whose names and operands the last two are.
#define MDOPS_MULTIPLY_UNIT(Columns, A, B, Add, Names, ...)                                             \
  MDOPS_D void multiply_unit(float (&d)[Columns / 2], uint64_t a, uint64_t b, int add) {                \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %" #Add                                          \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #Columns "k16.f32.f16.f16 {" Names "}, %" #A \
                 ", %" #B ", add, 1, 1, 0, 0;\n}"                                                       \
                 : __VA_ARGS__                                                                          \
                 : "l"(a), "l"(b), "r"(add));                                                           \
  }

MDOPS_MULTIPLY_UNIT(32, 16, 17, 18, MDOPS_REGISTERS_16, MDOPS_NUMBERS_16("+f", d, 0))
MDOPS_MULTIPLY_UNIT(48, 24, 25, 26, MDOPS_REGISTERS_24, MDOPS_NUMBERS_16("+f", d, 0),
                    MDOPS_NUMBERS_8("+f", d, 16))
MDOPS_MULTIPLY_UNIT(64, 32, 33, 34, MDOPS_REGISTERS_32, MDOPS_NUMBERS_32("+f", d, 0))
MDOPS_MULTIPLY_UNIT(96, 48, 49, 50, MDOPS_REGISTERS_48, MDOPS_NUMBERS_32("+f", d, 0),
                    MDOPS_NUMBERS_16("+f", d, 32))
MDOPS_MULTIPLY_UNIT(120, 60, 61, 62, MDOPS_REGISTERS_60, MDOPS_NUMBERS_32("+f", d, 0),
                    MDOPS_NUMBERS_16("+f", d, 32), MDOPS_NUMBERS_8("+f", d, 48), MDOPS_NUMBERS_4("+f", d, 56))
MDOPS_MULTIPLY_UNIT(128, 64, 65, 66, MDOPS_REGISTERS_64, MDOPS_NUMBERS_64("+f", d, 0))
#undef MDOPS_MULTIPLY_UNIT

#endif

}  // namespace mdops
