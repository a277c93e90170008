// Replaces source/op/common/gpu_wgmma.h: the same on the emulated GPU.
#pragma once

#include "common/gpu_mma.h"

namespace mdops {

constexpr int kGroupThreads = 128, kGroupWarps = 4;

// Products of warpgroups: each thread computes its own numbers. A matrix is its address in shared memory and
// the bytes of a row.
template <int RowBytes>
uint64_t matrix_of_rows(const char* shared, int block_bytes = 0) {
  return static_cast<uint64_t>(block_bytes / 16) << 48 | static_cast<uint64_t>(RowBytes) << 32 |
         static_cast<uint64_t>(shared - emulated_memory()) >> 4;
}

// Number `column` of row `row` of the matrix.
template <bool Bfloat>
float number_in(uint64_t matrix, int row, int column) {
  const int row_bytes = static_cast<int>(matrix >> 32 & 0xffff);
  int64_t at = static_cast<int64_t>(matrix & 0xffffffff) * 16 + row * row_bytes + 2 * column;
  at ^= (at >> 7 & (row_bytes == 128 ? 7 : 3)) << 4;
  const char* const number = emulated_memory() + at;
  emulated_check(number, 2);
  uint16_t bits;
  std::memcpy(&bits, number, 2);
  return emulated_half<Bfloat>(bits, 0);
}

inline void fence_shared() {}
inline void begin_products() {}
inline void commit_products() {}
template <int Pending>
void wait_for_products() {}
template <class T>
void fence_operands(T&) {}

// d (+)= A B of this thread, a(row, k) and b(k, column).
template <int Units, class A, class B>
void add_products(float (&d)[Units][4], bool add, const A& a, const B& b) {
  const int lane = threadIdx.x % 32;
  for (int n = 0; n < Units; ++n)
    for (int k = 0; k < 4; ++k) {
      double sum = add ? d[n][k] : 0;
      for (int depth = 0; depth < 16; ++depth)
        sum += static_cast<double>(a(lane / 4 + k / 2 * 8, depth)) * b(depth, 8 * n + 2 * (lane % 4) + k % 2);
      d[n][k] = static_cast<float>(sum);
    }
}

}  // namespace mdops
