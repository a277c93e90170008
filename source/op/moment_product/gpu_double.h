// The product in float64 by the tensor cores, for moments of four columns; the way back is of gemm_fp64.
//
// A block has 16 rows of T, four numbers c of each: 64 rows of a matrix product. Warp w of 8 has rows
// 16 (w / 2) .. and one half of the columns, in units of 16 x 8; of a unit lane l has rows l / 4 and l / 4 +
// 8, columns 2 (l % 4) and the next. Both operands come by `cp.async`, three stages of 16 of the depth:
//
//   shared memory    A      64 rows of 16 numbers, 20 apart: pieces of different rows lie in different banks
//                    B      16 rows of all columns, 4 mod 16 apart
//   at the end       sums   64 rows over both, stored from there in order
//
// Moments are zero without neighbours: stages that are zero for all rows are skipped.
#pragma once

#include "common/gpu_copy.h"
#include "common/gpu_mma.h"
#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "moment_product/moment_product.h"

namespace mdops::gpu_moment_product {

constexpr int kRowWarps = 4, kDoubleThreads = 64 * kRowWarps;
constexpr int kTileAtoms = 16, kTileRows = 4 * kTileAtoms;
constexpr int kStageDepth = 16, kStages = 3, kApart = kStageDepth + 4;

// `Units` of eight columns a warp.
template <int Units>
struct DoubleTile {
  static constexpr int kCols = 16 * Units, kBApart = kCols + 4;
  static constexpr int kA = kTileRows * kApart, kB = kStageDepth * kBApart;
  static constexpr int kStage = kA + kB, kSumApart = kCols + 8;
  static constexpr int kPipe = kStages * kStage, kSums = kTileRows * kSumApart;
  static constexpr int kBytes = 8 * (kPipe > kSums ? kPipe : kSums);
};

// `Two`: the tables' rows begin on 16 bytes.
template <int Units, bool Two>
__global__ void __launch_bounds__(kDoubleThreads, 2) double_kernel(MomentProductArgs<double> p) {
  using Tile = DoubleTile<Units>;
  extern __shared__ __align__(16) char product_memory[];
  double* const shared = reinterpret_cast<double*>(product_memory);
  __shared__ int kinds[kTileAtoms];
  __shared__ int64_t atoms[kTileAtoms];
  const int col_tiles = (p.width + Tile::kCols - 1) / Tile::kCols;
  const int64_t first = static_cast<int64_t>(blockIdx.x / col_tiles) * kTileAtoms;
  const int count = static_cast<int>(min(static_cast<int64_t>(kTileAtoms), p.rows - first));
  const int col0 = blockIdx.x % col_tiles * Tile::kCols, columns = min(Tile::kCols, p.width - col0);
  const int lane = lane_index(), warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const int stages = (p.depth + kStageDepth - 1) / kStageDepth;
  if (static_cast<int>(threadIdx.x) < kTileAtoms) {
    const bool in_bounds = static_cast<int>(threadIdx.x) < count;
    const int atom = in_bounds ? p.row_atom[first + threadIdx.x] : -1;
    kinds[threadIdx.x] = in_bounds ? p.kind_of(first + threadIdx.x) : -1;
    atoms[threadIdx.x] = atom >= 0 && atom < p.atoms ? atom : -1;
  }
  __syncthreads();

  unsigned left = (1u << count) - 1;
  while (left) {  // only once, unless kinds mix
    const int kind = kinds[__ffs(left) - 1];
    unsigned same = 0;
    for (int r = 0; r < count; ++r)
      if (left >> r & 1 && kinds[r] == kind) same |= 1u << r;
    left &= ~same;
    const double* const table = p.table + static_cast<int64_t>(max(kind, 0)) * p.depth * p.width;

    // In A each thread has four numbers of a stage.
    const auto fetch = [&](int stage) {
      double* const to = shared + stage % kStages * Tile::kStage;
      const int k0 = stage * kStageDepth;
      for (int at = threadIdx.x; at < kTileRows * kStageDepth; at += kDoubleThreads) {
        // Adjacent in memory: the columns of a row's moments.
        const int r = at / (4 * kStageDepth), within = at % (4 * kStageDepth);
        const int a = within % 4, k = within / 4;
        const bool in_bounds = same >> r & 1 && kind >= 0 && k0 + k < p.depth;
        const int64_t place = (atoms[r] * p.depth + k0 + k) * 4 + a;
        copy_to_shared<8>(to + (4 * r + a) * kApart + k, in_bounds ? p.in + place : p.table, in_bounds);
      }
      constexpr int size = Two ? 2 : 1, across = Tile::kCols / size;
      for (int at = threadIdx.x; at < kStageDepth * across; at += kDoubleThreads) {
        const int k = at / across, n = at % across * size;
        const bool in_bounds = n < columns && k0 + k < p.depth;
        const int64_t place = static_cast<int64_t>(k0 + k) * p.width + col0 + n;
        copy_to_shared<Two ? 16 : 8>(to + Tile::kA + k * Tile::kBApart + n,
                                     in_bounds ? table + place : p.table, in_bounds);
      }
    };

    double sum[Units][4] = {};
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (stage < stages) fetch(stage);
      commit_copies();
    }
    for (int stage = 0; stage < stages; ++stage) {
      wait_for_copies<kStages - 2>();
      const double* const rows = shared + stage % kStages * Tile::kStage;
      const double* const cols = rows + Tile::kA;
      bool any = false;
      for (int at = threadIdx.x; at < kTileRows * kStageDepth; at += kDoubleThreads) {
        const int r = at / (4 * kStageDepth), within = at % (4 * kStageDepth);
        any |= rows[(4 * r + within % 4) * kApart + within / 4] != 0;
      }
      any = __syncthreads_or(any);
      if (stage + kStages - 1 < stages) fetch(stage + kStages - 1);
      commit_copies();
      if (!any) continue;
      const double* const own = rows + (16 * (warp / 2) + g) * kApart + t;
#pragma unroll
      for (int k = 0; k < kStageDepth; k += 8) {
        const double of_a[4] = {own[k], own[8 * kApart + k], own[k + 4], own[8 * kApart + k + 4]};
#pragma unroll
        for (int u = 0; u < Units; ++u) {
          const int n = (warp % 2 * Units + u) * 8 + g;
          const double* const b = cols + (k + t) * Tile::kBApart + n;
          multiply_add(sum[u], of_a, b[0], b[4 * Tile::kBApart]);
        }
      }
    }
    wait_for_copies<0>();
    __syncthreads();
    unrolled<Units, 2>([&](int u, int h) {
      *reinterpret_cast<double2*>(shared + (16 * (warp / 2) + g + 8 * h) * Tile::kSumApart +
                                  (warp % 2 * Units + u) * 8 + 2 * t) =
          make_double2(sum[u][2 * h], sum[u][2 * h + 1]);
    });
    __syncthreads();
    for (int r = warp; r < count; r += kDoubleThreads / kWarp) {
      if (!(same >> r & 1)) continue;
      for (int at = lane; at < 4 * columns; at += kWarp) {
        const int a = at / columns, n = at % columns;
        const int64_t place = ((first + r) * 4 + a) * p.width + col0 + n;
        p.out[place] = kind < 0 ? not_a_number<double>() : shared[(4 * r + a) * Tile::kSumApart + n];
      }
    }
    __syncthreads();
  }
}

}  // namespace mdops::gpu_moment_product
