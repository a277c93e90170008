// Low-bit products by mma.sync, for every chip from sm_80 on and for products of any size.
//
// A block multiplies kRows x kCols of C; its depth comes in stages of 128 numbers by cp.async:
//
//   A by lines       a row of 128 bytes, piece c of 16 bytes of row r in place c ^ (r & 7)
//   B by lines       a column of 128 bytes, piece c of column n in place c ^ (n / 4 & 7)
//   B by depth       128 depths of kCols bytes         } the places keep the words that a warp reads at once,
//   of B ternary        32 times four depths of kCols bytes } lines 4 apart (by depth), in different banks:
//   `line_place`
//
// Column c of unit j (of four units of eight columns) is column 4 c + j of the
// 32: so a word of B by depth or ternary holds a number of each of the four units, and a lane ends with eight
// columns side by side, 8 t .. 8 t + 7 for t = lane % 4, of rows lane / 4 and lane / 4 + 8 of each 16.
#pragma once

#include <cuda_fp16.h>

#include <type_traits>

#include "common/gpu_copy.h"
#include "common/gpu_mma.h"
#include "common/gpu_unroll.h"
#include "common/gpu_warp.h"
#include "lowbit/gpu_operands.h"

namespace mdops::gpu_lowbit {

constexpr int kStageDepth = 128;

// Warps along rows, columns and depth, each with RowUnits x 16 rows and ColUnits x 32 columns; stages under
// way. Where warps share the depth, each has every DepthWarps-th 32 of a stage.
template <int RowWarps, int ColWarps, int DepthWarps, int RowUnits, int ColUnits, int Stages>
struct MmaTile {
  static constexpr int kDepthWarps = DepthWarps;
  static constexpr int kRowWarps = RowWarps, kColWarps = ColWarps, kRowUnits = RowUnits, kColUnits = ColUnits;
  static constexpr int kRows = 16 * RowWarps * RowUnits, kCols = 32 * ColWarps * ColUnits;
  static constexpr int kThreads = 32 * RowWarps * ColWarps * DepthWarps, kStages = Stages;
  static constexpr int kABytes = kRows * kStageDepth, kBBytes = kCols * kStageDepth;
  static constexpr int kSumBytes = (DepthWarps - 1) * kRows * kCols * 4;
  static constexpr int kShared =
      Stages * (kABytes + kBBytes) > kSumBytes ? Stages * (kABytes + kBBytes) : kSumBytes;
};

// Offset of piece `piece` of depth `line` of B, in lines of kCols bytes; for ternary a line has four depths.
template <int Cols, bool Ternary>
MDOPS_D int line_place(int line, int piece) {
  if constexpr (Cols >= 128) {
    const int turn = Ternary ? line & 3 : line >> 2 & 3;
    return line * Cols + 16 * (piece ^ 2 * turn);
  } else if constexpr (Cols == 64) {
    // Two lines share the banks.
    const int slot = Ternary ? line : (line & ~5) | (line >> 2 & 1) | (line & 1) << 2;
    const int turn = Ternary ? line >> 1 & 1 : line >> 3 & 1;
    return slot * Cols + 16 * (piece ^ 2 * turn);
  } else {
    static_assert(Cols == 32);
    const int slot = Ternary ? line : (line & ~15) | (line >> 2 & 3) | (line & 3) << 2;
    return slot * Cols + 16 * piece;
  }
}

MDOPS_D int limited(int n) {
  return n < 0 ? 0 : n > 16 ? 16 : n;
}

MDOPS_D uint32_t shared_word(uint32_t at) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at));
  return word;
}

MDOPS_D void multiply_add(int (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890

#define MDOPS_FLOAT8_MMA(A, B)                                                        \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32." A "." B                       \
               ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))

// `kinds`: 2 for an A of e5m2, 1 for a B of e5m2.
MDOPS_D void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int kinds) {
  switch (kinds) {
    case 0:
      MDOPS_FLOAT8_MMA("e4m3", "e4m3");
      break;
    case 1:
      MDOPS_FLOAT8_MMA("e4m3", "e5m2");
      break;
    case 2:
      MDOPS_FLOAT8_MMA("e5m2", "e4m3");
      break;
    default:
      MDOPS_FLOAT8_MMA("e5m2", "e5m2");
  }
}
#undef MDOPS_FLOAT8_MMA

#else

// Four float8 as four float16: e5m2 is the upper half of one; e4m3 has a bias of 7 in the place of 15, which
// a product with 2^8 mends, subnormal numbers too, and NaN by its bits.
MDOPS_D uint2 halves_of(uint32_t x, bool is_e5m2) {
  if (is_e5m2) return make_uint2(__byte_perm(x, 0, 0x1404), __byte_perm(x, 0, 0x3424));
  uint32_t result[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const uint32_t two = __byte_perm(x, 0, k ? 0x3424 : 0x1404);  // in the upper halves of 16 bits
    const uint32_t shifted = (two & 0x80008000u) | (two & 0x7fff7fffu) >> 1;
    uint32_t scaled;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(scaled) : "r"(shifted), "r"(0x5c005c00u));
    const uint32_t none =
        ((two & 0x7f00u) == 0x7f00u ? 0x7fffu : 0u) | ((two & 0x7f000000u) == 0x7f000000u ? 0x7fff0000u : 0u);
    result[k] = scaled | none;
  }
  return make_uint2(result[0], result[1]);
}

// By float16's tensor cores, twice half of the depth; the order of the depth is the same in A and B.
MDOPS_D void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, int kinds) {
  const uint32_t b[2] = {b0, b1};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint2 top = halves_of(a[2 * half], kinds & 2), bottom = halves_of(a[2 * half + 1], kinds & 2);
    const uint2 right = halves_of(b[half], kinds & 1);
    const uint32_t left[4] = {top.x, bottom.x, top.y, bottom.y};
    multiply_here(c, left, right.x, right.y);
  }
}

#endif

// The stages of a product: k0 and end of the depth of each.
struct Stages {
  int depth, group, of_group, count;  // of_group: stages of a group if stages end with groups, else 0

  static Stages of(const Product& p) {
    const bool across =
        p.groups <= 1 || p.group % kStageDepth == 0 || (p.group % 32 == 0 && kStageDepth % p.group == 0);
    if (across) return {p.depth, p.group, 0, static_cast<int>(blocks_for(p.depth, kStageDepth))};
    const int of_group = static_cast<int>(blocks_for(p.group, kStageDepth));
    return {p.depth, p.group, of_group, p.groups * of_group};
  }
  __device__ int first(int stage) const {
    return of_group ? stage / of_group * group + stage % of_group * kStageDepth : stage * kStageDepth;
  }
  __device__ int end(int stage) const {
    const int last = of_group ? (stage / of_group + 1) * group : depth;
    return last < depth ? last : depth;
  }
};

// Orders the blocks of C so that those that run together share rows and columns.
MDOPS_D int2 tile_of(int index, int row_tiles, int col_tiles) {
  constexpr int kTall = 16;
  const int strip = index / (kTall * col_tiles), first = strip * kTall;
  const int tall = row_tiles - first < kTall ? row_tiles - first : kTall, rest = index - first * col_tiles;
  return make_int2(first + rest % tall, rest / tall);
}

MDOPS_D float as_float(int x) {
  return __int2float_rn(x);
}
MDOPS_D float as_float(float x) {
  return x;
}

MDOPS_D uint32_t pair(uint32_t low, uint32_t high) {
  return low | high << 16;
}

// Up to eight adjacent results of a row.
MDOPS_D void store_eight(const Product& p, int row, int col, const float (&v)[8]) {
  const int64_t at = static_cast<int64_t>(row) * p.cols + col;
  if (p.out_kind == LowBitOut::float32) {
    float* out = static_cast<float*>(p.out) + at;
    if (col + 8 <= p.cols && p.cols % 4 == 0) {
      reinterpret_cast<float4*>(out)[0] = make_float4(v[0], v[1], v[2], v[3]);
      reinterpret_cast<float4*>(out)[1] = make_float4(v[4], v[5], v[6], v[7]);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j)
        if (col + j < p.cols) out[j] = v[j];
    }
    return;
  }
  uint16_t half[8];
#pragma unroll
  for (int j = 0; j < 8; ++j)
    half[j] = p.out_kind == LowBitOut::bfloat16 ? bfloat16_bits(__float_as_uint(v[j]))
                                                : __half_as_ushort(__float2half_rn(v[j]));
  uint16_t* out = static_cast<uint16_t*>(p.out) + at;
  if (col + 8 <= p.cols && p.cols % 8 == 0) {
    *reinterpret_cast<uint4*>(out) = make_uint4(pair(half[0], half[1]), pair(half[2], half[3]),
                                                pair(half[4], half[5]), pair(half[6], half[7]));
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      if (col + j < p.cols) out[j] = half[j];
  }
}

template <class T, class Number, Layout Side>
MDOPS_D void copy_stage(const Product& p, const Stages& stages, int stage, int row0, int col0,
                        uint32_t shared) {
  const int k0 = stages.first(stage), end = stages.end(stage);
#pragma unroll
  for (int task = threadIdx.x; task < T::kRows * 8; task += T::kThreads) {
    const int r = task / 8, c = task % 8, bytes = row0 + r < p.rows ? limited(end - k0 - 16 * c) : 0;
    const uint8_t* from = bytes ? p.a.data + (row0 + r) * p.a.stride + k0 + 16 * c : p.a.data;
    copy_to_shared<16>(shared + r * kStageDepth + 16 * (c ^ (r & 7)), from, bytes);
  }
  shared += T::kABytes;
  if constexpr (Side == Layout::by_line) {
#pragma unroll
    for (int task = threadIdx.x; task < T::kCols * 8; task += T::kThreads) {
      const int n = task / 8, c = task % 8, bytes = col0 + n < p.cols ? limited(end - k0 - 16 * c) : 0;
      const uint8_t* from = bytes ? p.b.data + (col0 + n) * p.b.stride + k0 + 16 * c : p.b.data;
      copy_to_shared<16>(shared + n * kStageDepth + 16 * (c ^ (n >> 2 & 7)), from, bytes);
    }
  } else {
    constexpr bool kTernary = Side == Layout::ternary;
    constexpr int kDeep = kTernary ? 4 : 1, kPieces = T::kCols / 16;
#pragma unroll
    for (int task = threadIdx.x; task < kStageDepth / kDeep * kPieces; task += T::kThreads) {
      const int line = task / kPieces, c = task % kPieces;
      const int bytes = k0 + kDeep * line < end ? limited(p.cols - col0 - 16 * c) : 0;
      const uint8_t* from =
          bytes ? p.b.data + static_cast<int64_t>(k0 / kDeep + line) * p.b.stride + col0 + 16 * c : p.b.data;
      copy_to_shared<16>(shared + line_place<T::kCols, kTernary>(line, c), from, bytes);
    }
  }
}

// The numbers of B for 32 of the depth and 32 columns: b[j][h] of unit j, half h of the depth.
template <class T, Layout Side>
MDOPS_D void load_columns(uint32_t shared, int step, int col, uint32_t (&b)[4][2]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if constexpr (Side == Layout::by_line) {
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const int q = lane / 8, n = col + 4 * (lane & 7) + j + q / 2, c = 2 * step + q % 2;
      uint32_t r[4];
      load_matrices(r, shared + n * kStageDepth + 16 * (c ^ (n >> 2 & 7)));
      b[j][0] = r[0], b[j][1] = r[1], b[j + 1][0] = r[2], b[j + 1][1] = r[3];
    }
  } else {
    const int piece = (col + 4 * g) / 16, offset = 4 * g % 16;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t r[4];
      if constexpr (Side == Layout::ternary) {
        const uint32_t word =
            shared_word(shared + line_place<T::kCols, true>(8 * step + 4 * h + t, piece) + offset);
#pragma unroll
        for (int j = 0; j < 4; ++j) r[j] = spread_ternary(word >> 8 * j & 0xff);
      } else {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          w[i] = shared_word(shared + line_place<T::kCols, false>(32 * step + 16 * h + 4 * t + i, piece) +
                             offset);
        transpose_bytes(w, r);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) b[j][h] = r[j];
    }
  }
}

// Number is int or float; InParts: sums are added up in float32, group after group, or for float8 stage after
// stage (a tensor core keeps fewer bits than float32).
template <class T, class Number, Layout Side, bool InParts>
__global__ void __launch_bounds__(T::kThreads) mma_kernel(const Product p, const Stages stages) {
  extern __shared__ __align__(128) uint8_t memory[];
  const uint32_t shared = shared_address(memory);
  constexpr int kStageBytes = T::kABytes + T::kBBytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int2 tile =
      tile_of(blockIdx.x, (p.rows + T::kRows - 1) / T::kRows, (p.cols + T::kCols - 1) / T::kCols);
  const int row0 = tile.x * T::kRows, col0 = tile.y * T::kCols;
  const int warp_row = warp % T::kRowWarps * 16 * T::kRowUnits;
  const int warp_col = warp / T::kRowWarps % T::kColWarps * 32 * T::kColUnits;
  const int warp_step = warp / (T::kRowWarps * T::kColWarps);
  const int kinds = (p.a_kind == LowBit::e5m2 ? 2 : 0) | (p.b_kind == LowBit::e5m2 ? 1 : 0);

  Number sum[T::kRowUnits][T::kColUnits][4][4] = {};
  float parts[InParts ? T::kRowUnits : 1][InParts ? T::kColUnits : 1][4][4];
  if constexpr (InParts)
#pragma unroll
    for (int k = 0; k < T::kRowUnits * T::kColUnits * 16; ++k)
      (&parts[0][0][0][0])[k] = -0.0f;                   // -0 + x is x
  const int own_col = col0 + warp_col + 8 * (lane % 4);  // the first of eight, and 32 further on

  // Scales of eight columns from `col` on; after the last, its scale again, which is not stored.
  const auto scales_of = [&](const float* scales, int col, float (&s)[8]) {
#pragma unroll
    for (int k = 0; k < 8; ++k) s[k] = scales[p.b_step * min(col + k, p.cols - 1)];
  };
  // Loaded early for the end.
  float a_scale[T::kRowUnits][2], b_scale[T::kColUnits][8];
  unrolled<T::kRowUnits, 2>([&](int r, int h) {
    a_scale[r][h] = p.a_scale[p.a_step * min(row0 + warp_row + 16 * r + lane / 4 + 8 * h, p.rows - 1)];
  });
#pragma unroll
  for (int u = 0; u < T::kColUnits; ++u) {
    if (p.groups == 1)
      scales_of(p.b_scale, own_col + 32 * u, b_scale[u]);
    else
#pragma unroll
      for (int k = 0; k < 8; ++k) b_scale[u][k] = 1.0f;
  }

  // parts += sum scale, rounded twice.
  const auto add_part = [&](int g) {
    if constexpr (InParts) {
#pragma unroll
      for (int u = 0; u < T::kColUnits; ++u) {
        float scale[8] = {1, 1, 1, 1, 1, 1, 1, 1};
        if (p.groups > 1) scales_of(p.b_scale + static_cast<int64_t>(g) * p.cols, own_col + 32 * u, scale);
        unrolled<8, T::kRowUnits, 2>([&](int k, int r, int h) {
          Number& s = sum[r][u][k % 4][2 * h + k / 4];
          float& part = parts[r][u][k % 4][2 * h + k / 4];
          part = __fadd_rn(part, __fmul_rn(as_float(s), scale[k]));
          s = 0;
        });
      }
    }
  };

#pragma unroll 1
  for (int stage = 0; stage < T::kStages - 1; ++stage) {
    if (stage < stages.count)
      copy_stage<T, Number, Side>(p, stages, stage, row0, col0, shared + stage * kStageBytes);
    commit_copies();
  }
  for (int stage = 0; stage < stages.count; ++stage) {
    wait_for_copies<T::kStages - 2>();
    __syncthreads();
    const int next = stage + T::kStages - 1;
    if (next < stages.count)
      copy_stage<T, Number, Side>(p, stages, next, row0, col0, shared + next % T::kStages * kStageBytes);
    commit_copies();

    const uint32_t a_at = shared + stage % T::kStages * kStageBytes, b_at = a_at + T::kABytes;
    const int k0 = stages.first(stage), end = stages.end(stage);
#pragma unroll
    for (int turn = 0; turn < kStageDepth / 32 / T::kDepthWarps; ++turn) {
      const int step = turn * T::kDepthWarps + warp_step;
      if (k0 + 32 * step >= end) break;
      uint32_t a[T::kRowUnits][4];
#pragma unroll
      for (int r = 0; r < T::kRowUnits; ++r) {
        const int row = warp_row + 16 * r + lane % 16, c = 2 * step + lane / 16;
        load_matrices(a[r], a_at + row * kStageDepth + 16 * (c ^ (row & 7)));
      }
#pragma unroll
      for (int u = 0; u < T::kColUnits; ++u) {
        uint32_t b[4][2];
        load_columns<T, Side>(b_at, step, warp_col + 32 * u, b);
        unrolled<4, T::kRowUnits>(
            [&](int j, int r) { multiply_add(sum[r][u][j], a[r], b[j][0], b[j][1], kinds); });
      }
      if constexpr (InParts) {
        // A group may end within a stage; float8 sums are added at least once a stage.
        const int done = k0 + 32 * step + 32;
        static_assert(T::kDepthWarps == 1 || !std::is_same_v<Number, int>);
        const bool ends = done >= end || (p.groups > 1 && done % p.group == 0);
        if (ends || (!std::is_same_v<Number, int> && turn == kStageDepth / 32 / T::kDepthWarps - 1))
          add_part(p.groups > 1 ? (k0 + 32 * step) / p.group : 0);
      }
    }
  }

  // Adds up the sums of warps at one place with different depths, in the first warp and in their order.
  if constexpr (T::kDepthWarps > 1) {
    using Shared = std::conditional_t<InParts, float, Number>;
    constexpr int kOwn = T::kRowUnits * T::kColUnits * 16, kPlaces = T::kRowWarps * T::kColWarps;
    Shared* own;
    if constexpr (InParts)
      own = &parts[0][0][0][0];
    else
      own = &sum[0][0][0][0];
    Shared* all = reinterpret_cast<Shared*>(memory) + warp % kPlaces * 32 + lane;
    wait_for_copies<0>();
    __syncthreads();
    if (warp_step > 0)
#pragma unroll
      for (int k = 0; k < kOwn; ++k) all[((warp_step - 1) * kOwn + k) * 32 * kPlaces] = own[k];
    __syncthreads();
    if (warp_step > 0) return;
    unrolled<T::kDepthWarps - 1, kOwn>([&](int d, int k) { own[k] += all[(d * kOwn + k) * 32 * kPlaces]; });
  }

  unrolled<T::kRowUnits, 2>([&](int r, int h) {
    const int row = row0 + warp_row + 16 * r + lane / 4 + 8 * h;
    if (row >= p.rows) return;
#pragma unroll
    for (int u = 0; u < T::kColUnits; ++u) {
      if (own_col + 32 * u >= p.cols) continue;
      float v[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        float all;
        if constexpr (InParts)
          all = parts[r][u][k % 4][2 * h + k / 4];
        else
          all = as_float(sum[r][u][k % 4][2 * h + k / 4]);
        v[k] = __fmul_rn(__fmul_rn(all, b_scale[u][k]), a_scale[r][h]);
      }
      store_eight(p, row, own_col + 32 * u, v);
    }
  });
}

}  // namespace mdops::gpu_lowbit
