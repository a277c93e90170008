// Products of few multiply-adds, whose time is that of loading their numbers. So a block has one tile of C,
// each of its warps a share of the depth, and numbers go from memory straight to the lanes that multiply
// them, each as two TF32 (common/gpu_split.h). The warps' sums are added in shared memory, in a fixed order.
//
// A place of mma.sync may be any row, column or number of the depth, if A, B and C agree: lane 4 g + t has
// rows 2 g and 2 g + 1 of A, columns 4 g to 4 g + 3 of B, and numbers 4 t to 4 t + 3 of each sixteen of the
// depth of both. So it reads four numbers at once, in either layout.
#pragma once

#include <algorithm>

#include "common/gpu.h"
#include "common/gpu_mma.h"
#include "common/gpu_split.h"
#include "common/gpu_unroll.h"
#include "common/gpu_warp.h"
#include "gemm/gpu_memory.h"
#include "linear/gpu_matrix.h"

namespace mdops::gpu_linear {

constexpr int kSmallRows = 16, kSmallColumns = 32;
constexpr int kSmallDepth = 16;  // of a warp at once
constexpr int kSmallLine = kSmallColumns + 4;
constexpr int kMostSmallWarps = 16;
constexpr int64_t kSmallProduct = int64_t{1} << 25;  // multiply-adds that are no longer few

// A lane's four numbers of the depth for kLines adjacent lines.
template <int kLines, bool kDeep>
struct SmallPiece {
  float numbers[kLines][4];

  // Loads zeros beyond the depth and beyond the last line.
  template <bool kVectors>
  MDOPS_D void load(const Matrix& matrix, int64_t line, int64_t lines, int64_t deep, int64_t depth) {
    unrolled<kLines, 4>([&](int n, int k) { numbers[n][k] = 0; });
    if constexpr (!kVectors) {
      unrolled<kLines, 4>([&](int n, int k) {
        if (line + n < lines && deep + k < depth)
          numbers[n][k] = __ldg(matrix.data + (line + n) * matrix.line + (deep + k) * matrix.deep);
      });
    } else if constexpr (kDeep) {
#pragma unroll
      for (int n = 0; n < kLines; ++n)
        if (line + n < lines && deep < depth) {
          const float4 four =
              __ldg(reinterpret_cast<const float4*>(matrix.data + (line + n) * matrix.line + deep));
          numbers[n][0] = four.x, numbers[n][1] = four.y, numbers[n][2] = four.z, numbers[n][3] = four.w;
        }
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (line < lines && deep < depth) {
          const float* const from = matrix.data + line + (deep + k) * matrix.deep;
          if constexpr (kLines == 2) {
            const float2 two = __ldg(reinterpret_cast<const float2*>(from));
            numbers[0][k] = two.x, numbers[1][k] = two.y;
          } else {
            const float4 four = __ldg(reinterpret_cast<const float4*>(from));
            numbers[0][k] = four.x, numbers[1][k] = four.y, numbers[2][k] = four.z, numbers[3][k] = four.w;
          }
        }
    }
  }
};

template <bool kDeepA, bool kDeepB, bool kVectors>
__global__ void __launch_bounds__(kWarp* kMostSmallWarps) small_kernel(const __grid_constant__ RowArgs args) {
  float* const shared = reinterpret_cast<float*>(net_memory());
  const int warp = static_cast<int>(threadIdx.x) / kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
  const int g = lane_index() / 4, t = lane_index() % 4;
  const int beside = args.wide * static_cast<int>(args.coefficients.count);
  const int coefficient = static_cast<int>(blockIdx.x) % beside / args.wide;
  const int64_t row = static_cast<int64_t>(blockIdx.x / beside) * kSmallRows;
  const int64_t column = static_cast<int64_t>(blockIdx.x % args.wide) * kSmallColumns;
  Matrix of_a = args.a, of_b = args.b;
  of_a.data += coefficient * args.coefficients.a;
  of_b.data += degree_of(coefficient) * args.coefficients.b;

  float c[4][4] = {};
#pragma unroll 1
  for (int64_t at = warp * kSmallDepth; at < args.depth; at += warps * kSmallDepth) {
    SmallPiece<2, kDeepA> a;
    SmallPiece<4, kDeepB> b;
    a.template load<kVectors>(of_a, row + 2 * g, args.rows, at + 4 * t, args.depth);
    b.template load<kVectors>(of_b, column + 4 * g, args.columns, at + 4 * t, args.depth);
    // Tensor cores round every sum towards zero: so these begin at zero, with the small products first.
    float now[4][4] = {};
    Split of_row[2][4], of_column[4][4];
    unrolled<4>([&](int k) {
      unrolled<2>([&](int n) { of_row[n][k] = split(a.numbers[n][k]); });
      unrolled<4>([&](int n) { of_column[n][k] = split(b.numbers[n][k]); });
    });
    const auto multiply = [&](uint32_t Split::* left, uint32_t Split::* right) {
#pragma unroll
      for (int k = 0; k < 4; k += 2) {
        const uint32_t rows[4] = {of_row[0][k].*left, of_row[1][k].*left, of_row[0][k + 1].*left,
                                  of_row[1][k + 1].*left};
        unrolled<4>(
            [&](int n) { multiply_8(now[n], rows, of_column[n][k].*right, of_column[n][k + 1].*right); });
      }
    };
    multiply(&Split::low, &Split::high), multiply(&Split::high, &Split::low);
    multiply(&Split::high, &Split::high);
    unrolled<4, 4>([&](int n, int k) { c[n][k] += now[n][k]; });
  }
  // Number 2 h + i of a lane's c is in row h and at place 2 t + i of the four columns' numbers.
  unrolled<2, 2>([&](int h, int i) {
    *reinterpret_cast<float4*>(shared + (warp * kSmallRows + 2 * g + h) * kSmallLine + 8 * t + 4 * i) =
        float4{c[0][2 * h + i], c[1][2 * h + i], c[2][2 * h + i], c[3][2 * h + i]};
  });
  __syncthreads();
  const int64_t n = column + lane_index();
  if (n >= args.columns) return;
  const float bias = args.bias ? args.bias[n] : 0.0f;
  float* const to = args.c + coefficient * args.coefficients.c + n;
#pragma unroll 1
  for (int r = warp; r < kSmallRows && row + r < args.rows; r += warps) {
    float sum = bias;
#pragma unroll 4
    for (int from = 0; from < warps; ++from)
      sum += shared[(from * kSmallRows + r) * kSmallLine + lane_index()];
    to[(row + r) * args.c_line] = sum;
  }
}

// Whether contiguous numbers can be read `count` at once.
inline bool has_vectors(const Matrix& matrix, int64_t lines, int64_t depth, int count) {
  const int64_t apart = matrix.deep == 1 ? matrix.line : matrix.deep;
  const bool begins = reinterpret_cast<uintptr_t>(matrix.data) % (count * sizeof(float)) == 0;
  return begins && apart % count == 0 && lines % count == 0 && depth % 4 == 0;
}

// Computes C with the bias, for A and B that are contiguous along or across their lines.
inline void run_small(const Gpu& gpu, RowArgs args) {
  args.wide = gpu.int32_of("weight", blocks_for(args.columns, kSmallColumns));
  const int64_t tiles = blocks_for(args.rows, kSmallRows) * args.wide * args.coefficients.count;
  // As many warps as pieces of the depth, but in all blocks no more than the chip holds at once.
  const int64_t filling = blocks_for(int64_t{kMostSmallWarps} * gpu.limits().multiprocessors, tiles);
  const int64_t pieces = std::max<int64_t>(blocks_for(args.depth, kSmallDepth), 1);
  const int warps = static_cast<int>(std::min({pieces, filling, int64_t{kMostSmallWarps}}));
  const bool deep_a = args.a.deep == 1, deep_b = args.b.deep == 1;
  const bool vectors = has_vectors(args.a, deep_a ? 4 : args.rows, args.depth, deep_a ? 4 : 2) &&
                       has_vectors(args.b, deep_b ? 4 : args.columns, args.depth, 4) &&
                       args.coefficients.a % 4 == 0;
  const auto launch = [&](auto kernel) {
    gpu.launch(kernel, tiles, warps * kWarp, warps * int64_t{sizeof(float)} * kSmallRows * kSmallLine, args);
  };
  const auto launch_by = [&]<bool kVectors>() {
    if (deep_a)
      deep_b ? launch(small_kernel<true, true, kVectors>) : launch(small_kernel<true, false, kVectors>);
    else
      deep_b ? launch(small_kernel<false, true, kVectors>) : launch(small_kernel<false, false, kVectors>);
  };
  vectors ? launch_by.template operator()<true>() : launch_by.template operator()<false>();
}

}  // namespace mdops::gpu_linear
