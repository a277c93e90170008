// Products of float32 matrices by Hopper's tensor cores, to float32's accuracy, in the three forms of
// forms.h.
//
// Each number is the sum of two of TF32, 11 bits each: a b is then three products (that of the two small
// parts is below 2^-24 of the whole). A block has 128 x 64 of C, each of its two warpgroups 64 rows. A and B
// come as they lie in memory, two stages of 32 of the depth:
//
//   A  -- cp.async -->  raw  -- split -->  registers: rows l / 4 and l / 4 + 8 of a warp's 16
//   B  -- cp.async -->  raw  -- split -->  shared memory: columns as rows of 128 bytes, swizzled, the high
//   parts and the low
//
// Which numbers of the depth meet in one instruction is free, as long as they are the same for A and B: of
// each eight, place t is number 2 t and place t + 4 the next, which are one read where the depth lies side by
// side. Tensor cores round every sum towards zero: so a stage's sums begin at zero, the small products first,
// and are added to the rest in the usual way.
//
// Few tiles, or a depth of many rows, are shared by `parts` blocks a tile, whose sums a second kernel adds in
// order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/copy_async.h"
#include "common/gpu.h"
#include "common/warpgroup.h"
#include "linear/forms.h"

namespace mdops {
namespace gpu_product {

constexpr int kRows = 128, kColumns = 64, kDepth = 32, kStages = 2, kThreads = 256;
constexpr int kEights = kDepth / 8, kUnits = kColumns / 8;
constexpr int kPart = kColumns * kDepth;  // floats of B's high parts, and of the low ones
constexpr int kAlignment = 1024;
constexpr int kSumThreads = 256;

// A tile of A or B in shared memory: lines along the depth, or across it, so far from each other that a
// warp's reads fall on different banks.
template <bool along_depth, int width>
struct Tile {
  static constexpr int kLine = along_depth ? kDepth + 8 : width + 4;
  static constexpr int kFloats = kLine * (along_depth ? width : kDepth);
};

template <ProductForm form>
struct Tiles {
  static constexpr bool kAlongA = form != ProductForm::a_transposed,
                        kAlongB = form == ProductForm::b_transposed;
  using A = Tile<kAlongA, kRows>;
  using B = Tile<kAlongB, kColumns>;
  static constexpr int kStage = A::kFloats + B::kFloats;
};

struct Shape {
  int64_t rows, columns, depth;
  int parts, stages;  // stages of the depth that a part has
};

struct Args {
  Shape shape;
  const float *a, *b, *bias;  // the bias, or null
  float *c, *sums;            // sums of B's columns, or null; of several parts, part after part
};

// Two parts of a number, as the tensor cores take them: of the low one's 12 bits and sign they drop one. By
// Dekker's splitting (doi.org/10.1007/BF01397083), because conversions to TF32 take many instructions.
struct Split {
  uint32_t high, low;
};

__device__ __forceinline__ Split split(float x) {
  const float scaled = __fmul_rn(x, 8193.f), high = __fsub_rn(scaled, __fsub_rn(scaled, x));
  return {__float_as_uint(high), __float_as_uint(__fsub_rn(x, high))};
}

// d (+)= A B, 64 x 8 times 8 x 64: of A each warp has 16 rows in registers, as of m16n8k8, of d the same.
__device__ __forceinline__ void multiply_add(float (&d)[kUnits][4], const uint32_t (&a)[4], uint64_t b,
                                             bool add) {
  MDOPS_ON_HOPPER(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" MDOPS_REGISTERS_32
      "}, {%32, %33, %34, %35}, %36, add, 1, 1;\n}" : MDOPS_4_UNITS(0),
      MDOPS_4_UNITS(4) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

// A tile of `width` lines of A or B, `first` being its first row or column.
template <int kVector, bool along_depth, int width>
__device__ __forceinline__ void copy_tile(float* tile, const float* from, int64_t first, int64_t lines,
                                          int64_t depth, int64_t at) {
  constexpr int kLine = Tile<along_depth, width>::kLine, kInner = along_depth ? kDepth : width;
  constexpr int kPieces = kInner / kVector, kCopies = width * kDepth / kVector;
  static_assert(kCopies % kThreads == 0);
#pragma unroll kVector  // more addresses at once would not fit into registers
  for (int n = 0; n < kCopies / kThreads; ++n) {
    const int piece = n * kThreads + static_cast<int>(threadIdx.x);
    const int outer = piece / kPieces, inner = piece % kPieces * kVector;
    const int64_t line = first + (along_depth ? outer : inner), k = at + (along_depth ? inner : outer);
    const bool there = line < lines && k < depth;
    const float* place = from + (there ? (along_depth ? line * depth + k : k * lines + line) : 0);
    copy_to_shared<4 * kVector>(tile + outer * kLine + inner, place, there);
  }
}

// Numbers 2 t and 2 t + 1 of eight of the depth, in a line.
template <bool along_depth, int width>
__device__ __forceinline__ float2 two_of(const float* tile, int line, int k) {
  constexpr int kLine = Tile<along_depth, width>::kLine;
  if constexpr (along_depth) return *reinterpret_cast<const float2*>(tile + line * kLine + k);
  return {tile[k * kLine + line], tile[(k + 1) * kLine + line]};
}

// A stage of B, in two parts, where products find it; and the sum of a column's numbers that this thread
// takes.
template <bool along_depth>
__device__ __forceinline__ float split_columns(const float* raw, float* parts) {
  const int lane = threadIdx.x % 32, n = 8 * (threadIdx.x / 32) + lane % 8, t = lane / 8;
  float sum = 0;
#pragma unroll
  for (int eight = 0; eight < kEights; ++eight) {
    const float2 both = two_of<along_depth, kColumns>(raw, n, 8 * eight + 2 * t);
    const Split first = split(both.x), second = split(both.y);
    float* const row = parts + n * kDepth + t;
    const int place = 4 * ((2 * eight) ^ n % 8), next = 4 * ((2 * eight + 1) ^ n % 8);
    row[place] = __uint_as_float(first.high), row[kPart + place] = __uint_as_float(first.low);
    row[next] = __uint_as_float(second.high), row[kPart + next] = __uint_as_float(second.low);
    sum += both.x + both.y;
  }
  return sum;
}

template <bool along_depth>
struct GroupProduct {
  float c[kUnits][4] = {};

  // One stage; `row` is the warp's in the tile of A.
  __device__ __forceinline__ void add(const float* a, uint64_t high_b, uint64_t low_b, int row) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t high[kEights][4], low[kEights][4];
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 both = two_of<along_depth, kRows>(a, row + g + 8 * h, 8 * eight + 2 * t);
        const Split first = split(both.x), second = split(both.y);
        high[eight][h] = first.high, low[eight][h] = first.low;
        high[eight][h + 2] = second.high, low[eight][h + 2] = second.low;
      }
    }
    float now[kUnits][4];
    begin_products();
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      multiply_add(now, low[eight], high_b + 2 * eight, eight > 0);
      multiply_add(now, high[eight], low_b + 2 * eight, true);
    }
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) multiply_add(now, high[eight], high_b + 2 * eight, true);
    commit_products();
    wait_for_products<0>();
    settle(now);
#pragma unroll
    for (int n = 0; n < kUnits; ++n)
#pragma unroll
      for (int k = 0; k < 4; ++k) c[n][k] += now[n][k];
  }

  // To memory, with the bias; `row` and `column` are the warp's in C.
  __device__ __forceinline__ void store(const Args& args, float* to, int64_t row, int64_t column) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool pairs = args.shape.columns % 2 == 0;
#pragma unroll
    for (int n = 0; n < kUnits; ++n) {
      const int64_t at = column + 8 * n + 2 * t;
      const bool first = at < args.shape.columns, second = at + 1 < args.shape.columns;
      const float b0 = args.bias && first ? args.bias[at] : 0.f,
                  b1 = args.bias && second ? args.bias[at + 1] : 0.f;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int64_t line = row + 8 * h + g;
        if (line >= args.shape.rows || !first) continue;
        float* place = to + line * args.shape.columns + at;
        const float2 own{c[n][2 * h] + b0, c[n][2 * h + 1] + b1};
        if (pairs) {
          *reinterpret_cast<float2*>(place) = own;
        } else {
          place[0] = own.x;
          if (second) place[1] = own.y;
        }
      }
    }
  }
};

template <ProductForm form, int kVector>
__global__ void __launch_bounds__(kThreads, 2) product_kernel(const __grid_constant__ Args args) {
  using Own = Tiles<form>;
  extern __shared__ char memory[];
  float* const parts =
      reinterpret_cast<float*>(memory + (-reinterpret_cast<uintptr_t>(memory) & (kAlignment - 1)));
  float* const raw = parts + 2 * kPart;
  const uint64_t high = matrix_of_rows<128>(parts), low = matrix_of_rows<128>(parts + kPart);
  const Shape& s = args.shape;
  const int wide = static_cast<int>((s.columns + kColumns - 1) / kColumns);
  const int part = static_cast<int>(blockIdx.x) % s.parts, tile = static_cast<int>(blockIdx.x) / s.parts;
  const int64_t row = static_cast<int64_t>(tile / wide) * kRows,
                column = static_cast<int64_t>(tile % wide) * kColumns;
  const int64_t from = static_cast<int64_t>(part) * s.stages * kDepth;
  const int stages =
      static_cast<int>(max(int64_t{0}, min(int64_t{s.stages}, (s.depth - from + kDepth - 1) / kDepth)));

  const auto copy = [&](int n) {
    if (n < stages) {
      float* const stage = raw + n % kStages * Own::kStage;
      copy_tile<kVector, Own::kAlongA, kRows>(stage, args.a, row, s.rows, s.depth, from + n * kDepth);
      copy_tile<kVector, Own::kAlongB, kColumns>(stage + Own::A::kFloats, args.b, column, s.columns, s.depth,
                                                 from + n * kDepth);
    }
    commit_copies();
  };
  const int down = static_cast<int>(threadIdx.x) / 32 * 16;
  GroupProduct<Own::kAlongA> product;
  float sum = 0;
  for (int n = 0; n < kStages - 1; ++n) copy(n);
  for (int n = 0; n < stages; ++n) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the stage is there, and the one before, with its parts of B, is done
    const float* const stage = raw + n % kStages * Own::kStage;
    sum += split_columns<Own::kAlongB>(stage + Own::A::kFloats, parts);
    fence_shared();  // which waits for copies under way, too: so the next ones begin after it
    __syncthreads();
    copy(n + kStages - 1);
    product.add(stage, high, low, down);
  }
  product.store(args, args.c + part * s.rows * s.columns, row + down, column);
  if (!args.sums || row) return;
  sum += __shfl_xor_sync(~0u, sum, 8);
  sum += __shfl_xor_sync(~0u, sum, 16);
  const int lane = threadIdx.x % 32;
  const int64_t at = column + 8 * (threadIdx.x / 32) + lane;
  if (lane < 8 && at < s.columns) args.sums[part * s.columns + at] = sum;
}

// The parts' C, and the sums behind them. Of each number every one of a block's `kGroups` groups of threads
// takes some of the parts, in the same order every time.
template <int kGroups>
__global__ void __launch_bounds__(kSumThreads)
    sum_parts_kernel(Args args, const float* c, const float* sums) {
  constexpr int kNumbers = kSumThreads / kGroups;
  __shared__ float of_groups[kGroups][kNumbers];
  const int own = threadIdx.x % kNumbers, group = threadIdx.x / kNumbers;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kNumbers + own,
                numbers = args.shape.rows * args.shape.columns;
  const bool is_sum = at >= numbers;
  const int64_t place = is_sum ? at - numbers : at, count = is_sum ? args.shape.columns : numbers;
  const bool wanted = place < count && (!is_sum || args.sums);
  float sum = 0;
#pragma unroll 4
  for (int part = group; part < args.shape.parts; part += kGroups)
    if (wanted) sum += (is_sum ? sums : c)[part * count + place];
  of_groups[group][own] = sum;
  __syncthreads();
  if (group || !wanted) return;
  for (int other = 1; other < kGroups; ++other) sum += of_groups[other][own];
  if (!is_sum && args.bias) sum += args.bias[place % args.shape.columns];
  (is_sum ? args.sums : args.c)[place] = sum;
}

// Blocks that fill the chip, of at least four stages each.
inline Shape shape_of(const Gpu& gpu, int64_t rows, int64_t columns, int64_t depth) {
  const int64_t tiles = blocks_for(rows, kRows) * blocks_for(columns, kColumns);
  const int64_t stages = blocks_for(depth, kDepth), room = 2 * gpu.limits().multiprocessors;
  const int64_t parts = std::clamp<int64_t>(tiles ? room / tiles : 1, 1, std::max<int64_t>(stages / 4, 1));
  const int64_t each = std::max<int64_t>(blocks_for(stages, parts), 1);
  return {rows, columns, depth, static_cast<int>(std::max<int64_t>(blocks_for(stages, each), 1)),
          gpu.int32_of("x", each)};
}

// Floats of memory that a product needs beside its results.
inline int64_t workspace(const Shape& s) {
  return s.parts > 1 ? s.parts * (s.rows + 1) * s.columns : 0;
}

template <ProductForm form, int kVector>
void run(const Gpu& gpu, const Args& args) {
  constexpr int64_t kShared = 4 * (2 * kPart + kStages * Tiles<form>::kStage) + kAlignment;
  const Shape& s = args.shape;
  gpu.launch(product_kernel<form, kVector>,
             blocks_for(s.rows, kRows) * blocks_for(s.columns, kColumns) * s.parts, kThreads, kShared, args);
}

// C, and the sums of B's columns if they are wanted. Memory begins on 16 bytes.
inline void multiply(const Gpu& gpu, ProductForm form, const Args& args, float* workspace) {
  const Shape& s = args.shape;
  Args first = args;
  if (s.parts > 1) {
    first.c = workspace, first.bias = nullptr;
    if (args.sums) first.sums = workspace + s.parts * s.rows * s.columns;
  }
  const int64_t a_line = form == ProductForm::a_transposed ? s.rows : s.depth;
  const int64_t b_line = form == ProductForm::b_transposed ? s.depth : s.columns, lines = a_line | b_line;
  with_form(form, [&]<ProductForm own>() {
    if (lines % 4 == 0)
      run<own, 4>(gpu, first);
    else if (lines % 2 == 0)
      run<own, 2>(gpu, first);
    else
      run<own, 1>(gpu, first);
  });
  if (s.parts == 1) return;
  const auto sum = [&]<int groups>() {
    gpu.launch(sum_parts_kernel<groups>, blocks_for((s.rows + 1) * s.columns, kSumThreads / groups),
               kSumThreads, 0, args, first.c, first.sums);
  };
  if (s.parts > 8)
    sum.template operator()<8>();
  else
    sum.template operator()<1>();
}

}  // namespace gpu_product
}  // namespace mdops
