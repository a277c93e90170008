// C = A B for many rows of A, if whole columns of B, in two parts, fit into shared memory.
//
// A block has up to 64 columns of B. Each of its warpgroups takes units of 64 rows of A, loads one stage
// ahead, and once B is there waits for no other.
#pragma once

#include "common/gpu_unroll.h"
#include "linear/gpu_parts.h"

namespace mdops::gpu_linear {

constexpr int kRowThreads = 512;

using RowStage = RowsOfA<kRowEights>;

MDOPS_D void load_rows(RowStage& stage, const RowArgs& args, const float* a, int64_t row, int at) {
  const int lane = threadIdx.x % 32, depth = static_cast<int>(args.depth);
  unrolled<2>([&](int h) {
    const float* const line = a + min(row + lane / 4 + 8 * h, args.rows - 1) * args.a.line;
    unrolled<kRowEights>([&](int eight) {
      const int k = at + 8 * eight + lane % 4 * 2;
      stage.numbers[eight][h] = load_two(line + k, k < depth);
    });
  });
}

// Splits the columns of b from `column` on: stages of the depth in order, the low parts after all high
// ones.
template <int kUnits>
MDOPS_D void split_columns(const RowArgs& args, const float* b, int64_t column, int low, float* parts) {
  const int lane = threadIdx.x % 32, t = lane / 8;
  const int depth = static_cast<int>(args.depth), eights = (depth + 7) / 8;
#pragma unroll 4
  for (int at = threadIdx.x / 32; at < eights * kUnits; at += kRowThreads / 32) {
    const int eight = at / kUnits, n = at % kUnits * 8 + lane % 8, k = 8 * eight + 2 * t;
    const bool in_bounds = column + n < args.columns;
    const float* const from = b + (column + n) * args.b.line + k * args.b.deep;
    float* const row = parts + (eight / kRowEights * 8 * kUnits + n) * kRow;
    split_pair(
        row, low, eight % kRowEights, n, t,
        {load_one(from, in_bounds && k < depth), load_one(from + args.b.deep, in_bounds && k + 1 < depth)});
  }
}

template <int kUnits>
__global__ void __launch_bounds__(kRowThreads, 1) rows_kernel(const __grid_constant__ RowArgs args) {
  constexpr int kStage = 8 * kUnits * kRow;
  extern __shared__ char memory[];
  float* const parts =
      reinterpret_cast<float*>(memory + (-reinterpret_cast<uintptr_t>(memory) & (kAlignment - 1)));
  const int wide = args.wide, beside = wide * static_cast<int>(args.coefficients.count);
  const int coefficient = static_cast<int>(blockIdx.x) % beside / wide;
  const float* const a = args.a.data + coefficient * args.coefficients.a;
  const int depth = static_cast<int>(args.depth), stages = (depth + kRow - 1) / kRow;
  const int64_t column = static_cast<int64_t>(blockIdx.x % wide) * (8 * kUnits);
  const int blocks = static_cast<int>(gridDim.x) / beside, group = warp_index() / (kGroup / kWarp);
  const int step = kRowThreads / kGroup * blocks * kGroupRows;
  const int down = static_cast<int>(threadIdx.x) % kGroup / 32 * 16;
  int64_t first = (static_cast<int64_t>(group) * blocks + blockIdx.x / beside) * kGroupRows;
  RowStage next;
  load_rows(next, args, a, first + down, 0);
  split_columns<kUnits>(args, args.b.data + degree_of(coefficient) * args.coefficients.b, column,
                        stages * kStage, parts);
  fence_shared();
  __syncthreads();
  const uint64_t b = matrix_of_rows<128>(parts);
  for (; first < args.rows; first += step) {
    float c[kUnits][4] = {};
    for (int n = 0; n < stages; ++n) {
      const SplitRows<kRowEights> own(next);
      const bool last = n + 1 == stages;
      load_rows(next, args, a, first + down + (last ? step : 0), last ? 0 : (n + 1) * kRow);
      const uint64_t high = b + n * (kStage / 4), low = high + stages * (kStage / 4);
      const int eights = (depth - n * kRow + 7) / 8;
      float now[kUnits][4];
      if (eights >= 4)
        begin_stage<4>(now, own, high, low);
      else if (eights == 3)
        begin_stage<3>(now, own, high, low);
      else if (eights == 2)
        begin_stage<2>(now, own, high, low);
      else
        begin_stage<1>(now, own, high, low);
      finish_stage(c, now);
    }
    store(c, args.bias, args.c + coefficient * args.coefficients.c, args.c_line, args.rows, args.columns,
          first + down, column);
  }
}

}  // namespace mdops::gpu_linear
