// In the place of source/op/attention/gpu_instructions.h: the same on the emulated GPU. What reads or writes
// shared memory checks that it stays within what the launch asked for.
#pragma once

#include "attention/gpu_args.h"
#include "common/copy_async.h"
#include "gemm/gpu_parts.h"
#include "warp.h"

namespace mdops {
namespace gpu_attention {

inline char* block_memory() {
  return emulated_memory();
}
inline void check_shared(const void* at, int bytes) {
  emulated_check(at, bytes);
}

inline void load_four(uint32_t (&r)[4], const char* shared) {
  emulated_load_matrices(r, shared);
}

inline void load_four_transposed(uint32_t (&r)[4], const char* shared) {
  check_shared(shared, 16);
  const char* all = emulated_exchange(&shared, sizeof(shared));
  const int lane = threadIdx.x % 32;
  for (int n = 0; n < 4; ++n) {
    uint16_t half[2];
    for (int k = 0; k < 2; ++k)
      std::memcpy(&half[k], emulated_matrix_row(all, n, 2 * (lane % 4) + k) + 2 * (lane / 4), 2);
    r[n] = half[0] | static_cast<uint32_t>(half[1]) << 16;
  }
}

template <bool Bfloat>
float half_of(uint32_t word, int k) {
  return emulated_half<Bfloat>(word, k);
}
template <bool Bfloat>
void multiply_16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_multiply<Bfloat>(c, a, b0, b1);
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

// Products of warpgroups: each thread finds its own numbers. A matrix is its place in shared memory and the
// bytes of a row.
inline const char* shared_start() {
  return emulated_memory();
}

template <int RowBytes>
uint64_t matrix_of_rows(const char* shared, int block_bytes = 0) {
  return static_cast<uint64_t>(block_bytes / 16) << 48 | static_cast<uint64_t>(RowBytes) << 32 |
         static_cast<uint64_t>(shared - shared_start()) >> 4;
}

// Number `column` of row `row`, counted from where the matrix begins.
template <bool Bfloat>
float number_in(uint64_t matrix, int row, int column) {
  const int row_bytes = static_cast<int>(matrix >> 32 & 0xffff);
  int64_t at = static_cast<int64_t>(matrix & 0xffffffff) * 16 + row * row_bytes + 2 * column;
  at ^= (at >> 7 & (row_bytes == 128 ? 7 : 3)) << 4;
  const char* const number = shared_start() + at;
  check_shared(number, 2);
  uint16_t bits;
  std::memcpy(&bits, number, 2);
  return half_of<Bfloat>(bits, 0);
}

inline void fence_shared() {}
inline void begin_products() {}
inline void commit_products() {}
template <int Pending>
void wait_for_products() {}
template <int Units>
void settle(float (&)[Units][4]) {}

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

// Blocks of 64 columns follow one another where B is wider.
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
        return half_of<Bfloat>(left.a[row / 8 + k / 8 * 2], k % 2);
      },
      [&](int k, int column) {
        if (!Across) return number_in<Bfloat>(b, column, k);
        return number_in<Bfloat>(b + column / 64 * (b >> 48), k, column % 64);
      });
}

inline float power_of_two(float x) {
  return exp2f(x);
}
inline int opaque(int x) {
  return x;
}
inline void prefetch_line(const void*) {}

inline void wait_for_team(int, int threads) {
  emulated_team_barrier(threads);
}

inline uint32_t warp_largest(uint32_t x) {
  const char* all = emulated_exchange(&x, sizeof(x));
  uint32_t largest = 0;
  for (int lane = 0; lane < 32; ++lane) largest = std::max(largest, emulated_lane<uint32_t>(all, lane));
  return largest;
}

}  // namespace gpu_attention
}  // namespace mdops
