// C = A B for any A and B: a block has 128 x 64 of C, each of its two warpgroups 64 rows.
//
// Both are loaded one stage, 16 of the depth, ahead, straight to registers:
//
//   A  -->  registers  -- split -->  registers
//   B  -->  registers  -- split -->  shared memory, one half of each row of 128 bytes for every other stage
//
// While the tensor cores compute a stage, B's next one is split.
//
// If tiles are few or the depth is long, `parts` blocks share a tile, and a second kernel adds their sums in
// order.
#pragma once

#include "common/gpu_unroll.h"
#include "linear/gpu_parts.h"

namespace mdops::gpu_linear {

constexpr int kTileRows = 2 * kGroupRows, kTileColumns = 64, kTileThreads = 2 * kGroup;
constexpr int kDepth = 16, kEights = kDepth / 8, kUnits = kTileColumns / 8;
constexpr int kLow = kTileColumns * kRow;  // floats from B's high parts to the low ones
constexpr int kSumThreads = 256;

struct Shape {
  int64_t rows, columns, depth;
  int parts, stages;  // stages of the depth per part
};

struct Args {
  Shape shape;
  Matrix a, b;
  const float* bias;             // or null
  float *c, *sums;               // sums of B's columns, or null; several parts follow each other
  int64_t c_line;                // stride of C's rows; with several parts, the columns
  Coefficients coefficients;     // more than one only with one part and without sums
  const float* added = nullptr;  // as in RowArgs
};

// A stage as a thread reads it: its rows of A, and two numbers of each eight of a column of B.
struct TileStage {
  RowsOfA<kEights> a;
  float2 b[kEights];

  // The first stage is at `from`, with `left` of the depth left; `row` and `column` are the warp's.
  MDOPS_D TileStage(const Args& args, int64_t row, int64_t column, int64_t from, int left)
      : a_(args.a), b_(args.b) {
    const int lane = threadIdx.x % 32, k_a = lane % 4 * 2, k_b = lane / 8 * 2;
    row += lane / 4, column += lane % 8;
    a_.data += row * a_.line + (from + k_a) * a_.deep, left_a_ = left - k_a;
    b_.data += column * b_.line + (from + k_b) * b_.deep, left_b_ = left - k_b;
    for (int h = 0; h < 2; ++h) has_row_[h] = row + 8 * h < args.shape.rows;
    has_column_ = column < args.shape.columns;
  }

  // Loads the next stage, with zeros beyond the depth.
  MDOPS_D void load() {
    unrolled<kEights>([&](int eight) {
      b[eight] = two_of(b_.data + 8 * eight * b_.deep, b_.deep, has_column_, left_b_ - 8 * eight);
#pragma unroll
      for (int h = 0; h < 2; ++h)
        a.numbers[eight][h] = two_of(a_.data + 8 * eight * a_.deep + 8 * h * a_.line, a_.deep, has_row_[h],
                                     left_a_ - 8 * eight);
    });
    a_.data += kDepth * a_.deep, left_a_ -= kDepth;
    b_.data += kDepth * b_.deep, left_b_ -= kDepth;
  }

 private:
  MDOPS_D static float2 two_of(const float* from, int64_t deep, bool in_bounds, int left) {
    return {load_one(from, in_bounds && 0 < left), load_one(from + deep, in_bounds && 1 < left)};
  }

  Matrix a_, b_;
  bool has_row_[2], has_column_;
  int left_a_, left_b_;
};

// Splits B's stage to its half of the rows in `parts`; returns the numbers' sum.
MDOPS_D float split_stage(const float2 (&b)[kEights], int half, float* parts) {
  const int lane = threadIdx.x % 32, n = 8 * (threadIdx.x / 32) + lane % 8;
  float sum = 0;
  unrolled<kEights>([&](int eight) {
    split_pair(parts + n * kRow, kLow, kEights * half + eight, n, lane / 8, b[eight]);
    sum += b[eight].x + b[eight].y;
  });
  return sum;
}

static __global__ void __launch_bounds__(kTileThreads, 2) tile_kernel(const __grid_constant__ Args all) {
  extern __shared__ char memory[];
  float* const parts =
      reinterpret_cast<float*>(memory + (-reinterpret_cast<uintptr_t>(memory) & (kAlignment - 1)));
  const uint64_t high = matrix_of_rows<128>(parts), low = matrix_of_rows<128>(parts + kLow);
  const Shape& s = all.shape;
  const int beside = static_cast<int>(all.coefficients.count);
  const int coefficient = static_cast<int>(blockIdx.x) % beside,
            block = static_cast<int>(blockIdx.x) / beside;
  Args args = all;
  args.a.data += coefficient * all.coefficients.a, args.c += coefficient * all.coefficients.c;
  args.b.data += degree_of(coefficient) * all.coefficients.b;
  const int wide = static_cast<int>((s.columns + kTileColumns - 1) / kTileColumns);
  const int part = block % s.parts, tile = block / s.parts;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t row = static_cast<int64_t>(tile / wide) * kTileRows + 16 * warp,
                column = static_cast<int64_t>(tile % wide) * kTileColumns;
  const int64_t from = static_cast<int64_t>(part) * s.stages * kDepth;
  const int left = static_cast<int>(max(int64_t{0}, min(int64_t{s.stages} * kDepth, s.depth - from)));
  const int stages = (left + kDepth - 1) / kDepth;

  TileStage next(args, row, column + 8 * warp, from, left);
  next.load();
  float sum = split_stage(next.b, 0, parts), c[kUnits][4] = {};
  for (int n = 0; n < stages; ++n) {
    const SplitRows<kEights> own(next.a);
    fence_shared();  // it also waits for pending loads: so the next are issued after it
    next.load();
    __syncthreads();  // the stage is there, and the last one is finished
    const int half = 2 * kEights * (n % 2);
    float now[kUnits][4];
    begin_stage<kEights>(now, own, high + half, low + half);
    sum += split_stage(next.b, (n + 1) % 2, parts);
    finish_stage(c, now);
  }
  store(c, args.bias, args.c + part * s.rows * s.columns, args.c_line, s.rows, s.columns, row, column);
  if (!args.sums || tile / wide) return;
  sum += __shfl_xor_sync(~0u, sum, 8);
  sum += __shfl_xor_sync(~0u, sum, 16);
  const int64_t at = column + 8 * warp + lane;
  if (lane < 8 && at < s.columns) args.sums[part * s.columns + at] = sum;
}

// Adds the parts' C, and the sums after them. Each of a block's `kGroups` groups of threads adds some parts
// of a number, in a fixed order.
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

}  // namespace mdops::gpu_linear
