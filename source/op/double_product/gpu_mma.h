// What products in float64 by the tensor cores are made of: sums of 16 x 8.
#pragma once

#include "common/copy_async.h"

namespace mdops {

// d += a b: a has rows l / 4 and l / 4 + 8 of number l % 4 of the depth, then of l % 4 + 4; b these two
// numbers of column l / 4.
__device__ __forceinline__ void multiply_add(double (&d)[4], const double (&a)[4], double b0, double b1) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b0), "d"(b1));
#else
  const auto small = [](double& d0, double& d1, double a0, double b) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(d0), "+d"(d1)
                 : "d"(a0), "d"(b));
  };
  small(d[0], d[1], a[0], b0), small(d[2], d[3], a[1], b0);
  small(d[0], d[1], a[2], b1), small(d[2], d[3], a[3], b1);
#endif
}

}  // namespace mdops
