// Replaces source/op/attention/gpu_instructions.h: the same on the emulated GPU.
#pragma once

#include "attention/gpu_args.h"
#include "common/gpu_barrier.h"
#include "common/gpu_copy.h"
#include "common/gpu_mma.h"
#include "common/gpu_power.h"
#include "common/gpu_wgmma.h"
#include "gemm/gpu_parts.h"

namespace mdops {
namespace gpu_attention {

inline char* block_memory() {
  return emulated_memory();
}

constexpr int kAlignment = 1024;
inline char* aligned_memory() {
  return block_memory();
}

template <int Parts, class F>
void each_product(const F& f) {
  if (Parts == 2)
    f(1, 0, true), f(0, 1, false), f(0, 0, false);
  else
    f(0, 0, true);
}

template <bool Bfloat, bool Across, int Units>
void multiply_group(float (&d)[Units][4], uint64_t a, uint64_t b, bool add) {
  const int first = threadIdx.x / 32 % 4 * 16;
  const auto of = [](uint64_t matrix, int row, int k) {
    return Across ? number_in<Bfloat>(matrix, k, row) : number_in<Bfloat>(matrix, row, k);
  };
  add_products(
      d, add, [&](int row, int k) { return of(a, first + row, k); },
      [&](int k, int column) { return of(b, column, k); });
}

// If B is wider, it consists of consecutive blocks of 64 columns.
template <bool Bfloat, bool Across, int Units>
void multiply_group(float (&d)[Units][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  struct Operand {
    uint32_t a[4];
  } const given{{a[0], a[1], a[2], a[3]}};
  const char* all = emulated_exchange(&given, sizeof(given));
  add_products(
      d, add,
      [&](int row, int k) {
        const auto left = emulated_lane<Operand>(all, row % 8 * 4 + k % 8 / 2);
        return emulated_half<Bfloat>(left.a[row / 8 + k / 8 * 2], k % 2);
      },
      [&](int k, int column) {
        if (!Across) return number_in<Bfloat>(b, column, k);
        return number_in<Bfloat>(b + column / 64 * (b >> 48), k, column % 64);
      });
}

inline int opaque(int x) {
  return x;
}
inline void prefetch_line(const void*) {}

}  // namespace gpu_attention
}  // namespace mdops
