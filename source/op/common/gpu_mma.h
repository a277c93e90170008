// Products by the tensor cores of a warp (mma.sync), and their operands from shared memory (ldmatrix).
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {

// Loads four matrices of 8 x 8 numbers of 16 bits; lane l passes row l % 8 of matrix l / 8, and gets numbers
// 2 (l % 4) and the next of row l / 4 of each.
MDOPS_D void load_matrices(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared));
}

// The same with each matrix transposed.
MDOPS_D void load_transposed(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared));
}

#define MDOPS_MULTIPLY_16(number)                            \
  "mma.sync.aligned.m16n8k16.row.col.f32." number "." number \
  ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"

// c += A B, 16 x 16 times 16 x 8, of float16 or bfloat16.
template <bool Bfloat>
MDOPS_D void multiply_16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (Bfloat)
    asm(MDOPS_MULTIPLY_16("bf16")
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm(MDOPS_MULTIPLY_16("f16")
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same in float16, but the compiler does not move it.
MDOPS_D void multiply_here(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(MDOPS_MULTIPLY_16("f16")
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#undef MDOPS_MULTIPLY_16

// c += A B, 16 x 8 times 8 x 8, in TF32 within float32: a has numbers l % 4 of the depth of rows l / 4 and l
// / 4 + 8, then l % 4 + 4; b these two numbers of column l / 4.
MDOPS_D void multiply_8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c += A B, 16 x 8 times 8 x 8, of float64: a has rows l / 4 and l / 4 + 8 of number l % 4 of the depth, then
// of l % 4 + 4; b these two numbers of column l / 4.
MDOPS_D void multiply_add(double (&c)[4], const double (&a)[4], double b0, double b1) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
#else
  const auto small = [](double& d0, double& d1, double a0, double b) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d0), "+d"(d1)
                 : "d"(a0), "d"(b));
  };
  small(c[0], c[1], a[0], b0), small(c[2], c[3], a[1], b0);
  small(c[0], c[1], a[2], b1), small(c[2], c[3], a[3], b1);
#endif
}

}  // namespace mdops
