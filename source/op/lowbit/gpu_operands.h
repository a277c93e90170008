// Factors of low-bit products on a GPU: their layout in memory, and copies of those that no kernel reads
// directly.
#pragma once

#include "common/gpu.h"
#include "common/gpu_warp.h"
#include "lowbit/lowbit.h"

namespace mdops::gpu_lowbit {

// A factor by lines: (lines, depth) with the depth contiguous, or (depth, lines) with the lines contiguous;
// ternary numbers are (depth / 4, lines).
enum class Layout : int { by_line, by_depth, ternary };

struct Factor {
  const uint8_t* data;
  Layout layout;
  int64_t stride;  // bytes from a line (a depth, four depths) to the next
  int64_t lines;
};

MDOPS_D uint32_t spread_ternary(uint32_t packed) {
  const uint32_t codes = (packed | packed << 6 | packed << 12 | packed << 18) & 0x03030303u;
  return codes | (codes >> 1 & 0x01010101u) * 0xfcu;
}

// r[j] = byte j of each of w.
MDOPS_D void transpose_bytes(const uint32_t (&w)[4], uint32_t (&r)[4]) {
  const uint32_t a = __byte_perm(w[0], w[1], 0x5140), b = __byte_perm(w[2], w[3], 0x5140);
  const uint32_t c = __byte_perm(w[0], w[1], 0x7362), d = __byte_perm(w[2], w[3], 0x7362);
  r[0] = __byte_perm(a, b, 0x5410), r[1] = __byte_perm(a, b, 0x7632);
  r[2] = __byte_perm(c, d, 0x5410), r[3] = __byte_perm(c, d, 0x7632);
}

// The depth of a factor and of its copy: groups of `group` numbers, each filled with zeros up to `filled`.
struct Depth {
  int64_t all, group, filled, groups;
};

constexpr int kCopyLines = 64, kCopyDepth = 128, kCopyThreads = 256;

// A byte of the factor, as int8 or float8.
__device__ inline uint32_t byte_at(const Factor& f, int64_t line, int64_t k) {
  if (f.layout == Layout::by_line) return f.data[line * f.stride + k];
  if (f.layout == Layout::by_depth) return f.data[k * f.stride + line];
  return static_cast<uint8_t>(ternary_of(f.data[k / 4 * f.stride + line], static_cast<int>(k % 4)));
}

// The copy, by lines of `stride` bytes: a block has kCopyLines lines by kCopyDepth of the depth. `words`:
// whether four adjacent lines may be read at once, with four of the depth kept together.
static __global__ void __launch_bounds__(kCopyThreads)
    copy_factor_kernel(Factor f, Depth depth, bool words, int64_t stride, uint8_t* to) {
  __shared__ uint32_t shared[kCopyLines][kCopyDepth / 4 + 1];
  constexpr int kQuads = kCopyDepth / 4, kLineQuads = kCopyLines / 4;
  const int64_t strips = (stride + kCopyDepth - 1) / kCopyDepth;
  const int64_t first_line = blockIdx.x / strips * kCopyLines, first = blockIdx.x % strips * kCopyDepth;
  for (int task = threadIdx.x; task < kQuads * kLineQuads; task += kCopyThreads) {
    const int quad = task / kLineQuads, four = task % kLineQuads;
    const int64_t line = first_line + 4 * four, k = first + 4 * quad;
    uint32_t r[4] = {};
    if (words && line + 4 <= f.lines && k + 4 <= depth.all) {
      if (f.layout == Layout::ternary) {
        const uint32_t packed = *reinterpret_cast<const uint32_t*>(f.data + k / 4 * f.stride + line);
#pragma unroll
        for (int j = 0; j < 4; ++j) r[j] = spread_ternary(packed >> 8 * j & 0xff);
      } else {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          w[i] = *reinterpret_cast<const uint32_t*>(f.data + (k + i) * f.stride + line);
        transpose_bytes(w, r);
      }
    } else {
      for (int i = 0; i < 4; ++i) {
        const int64_t at = k + i, g = at / depth.filled, j = at - g * depth.filled;
        const int64_t source = g * depth.group + j;
        if (g >= depth.groups || j >= depth.group || source >= depth.all) continue;
        for (int n = 0; n < 4; ++n)
          if (line + n < f.lines) r[n] |= byte_at(f, line + n, source) << 8 * i;
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) shared[4 * four + j][quad] = r[j];
  }
  __syncthreads();
  const int lane = threadIdx.x % 32;
  for (int n = threadIdx.x / 32; n < kCopyLines; n += kCopyThreads / 32)
    if (first_line + n < f.lines && first + 4 * lane < stride)
      *reinterpret_cast<uint32_t*>(to + (first_line + n) * stride + first + 4 * lane) = shared[n][lane];
}

inline int64_t filled_16(int64_t n) {
  return (n + 15) / 16 * 16;
}

// Copies a factor to `to`, lines of depth.groups * depth.filled bytes, a multiple of 16.
inline Factor copy_factor(const Gpu& gpu, const Factor& f, const Depth& depth, uint8_t* to) {
  const int64_t stride = depth.groups * depth.filled;
  const bool whole = depth.groups == 1 || depth.filled == depth.group;
  const bool words = whole && f.layout != Layout::by_line && f.stride % 4 == 0 &&
                     reinterpret_cast<uintptr_t>(f.data) % 4 == 0;
  gpu.launch(copy_factor_kernel, blocks_for(f.lines, kCopyLines) * blocks_for(stride, kCopyDepth),
             kCopyThreads, 0, f, depth, words, stride, to);
  return {to, Layout::by_line, stride, f.lines};
}

// Whether lines begin on 16 bytes.
inline bool is_aligned(const Factor& f) {
  return f.stride % 16 == 0 && reinterpret_cast<uintptr_t>(f.data) % 16 == 0;
}

// The inputs of a product.
struct Product {
  Factor a, b;
  int rows, cols, depth, group, groups;
  LowBit a_kind, b_kind;
  const float *a_scale, *b_scale;
  int a_step, b_step;
  LowBitOut out_kind;
  void* out;

  __host__ __device__ bool is_float() const { return a_kind == LowBit::e4m3 || a_kind == LowBit::e5m2; }
};

}  // namespace mdops::gpu_lowbit
