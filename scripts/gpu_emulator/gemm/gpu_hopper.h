// Replaces source/op/gemm/gpu_hopper.h: products of warpgroups on the emulated GPU.
#pragma once

#include "common/gpu_wgmma.h"
#include "gemm/gpu_parts.h"

namespace mdops {

template <int Size>
void multiply_unit(float (&d)[Size], uint64_t a, uint64_t b, int add) {
  const int first = threadIdx.x / 32 % 4 * 16;
  add_products(
      reinterpret_cast<float (&)[Size / 4][4]>(d), add != 0,
      [&](int row, int k) { return number_in<false>(a, first + row, k); },
      [&](int k, int column) { return number_in<false>(b, column, k); });
}

}  // namespace mdops
