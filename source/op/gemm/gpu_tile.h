// C = A B by the tensor cores to the accuracy of float32, or of TF32: rows of A are split into pairs of
// float16, or rounded to one, on the way to shared memory, B is packed (gpu_shape.h), and the product low low
// of (high + low)(high + low) is omitted.
//
// The operands' path, for 128 x 240 with two parts, where a stage is 32 of the depth:
//
//   A, float32 rows   -- cp.async -->  raw: 2 stages of 128 x 32 floats   -- split -->  A: 2 stages
//   B, fragments      -- cp.async -->  B: 3 stages of 2 steps x 30 tiles x 32 lanes x 16 bytes
//
//   warp (r, c) of 4 x 2 has rows 32 r .. 32 r + 31 and columns 120 c .. 120 c + 119 of the sums, as 2 x 15
//   units of 16 x 8, in each unit lane l rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next;
//   at the end the sums go through shared memory, over raw, A and B, so that neighbouring lanes finish
//   neighbouring columns.
//
// A row of A in a stage is eight pieces of 16 bytes,
//
//   piece 0: high parts of numbers 0-7    1: their low parts    2: high parts of 8-15    3: low    ...
//
// and piece c of row r is in place c ^ (r & 7). A thread splits only its own copies, so that these need no
// extra barrier.
#pragma once

#include <cuda_pipeline.h>

#include "common/gpu_copy.h"
#include "common/gpu_floats.h"
#include "common/gpu_mma.h"
#include "common/gpu_unroll.h"
#include "gemm/gpu_parts.h"

namespace mdops {

// Copies sixteen bytes; zeros if not `in_bounds`.
MDOPS_D void copy_async(uint32_t shared, const float* from, bool in_bounds = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from),
               "r"(in_bounds ? 16 : 0)
               : "memory");
}

// How a block of threads shares its tile: warps along rows, columns and depth; each warp's tile in units of
// 16 rows and 8 columns; the depth of a stage in units of 16; and how many stages of B are in flight.
template <int Parts, int RowWarps, int ColWarps, int DepthWarps, int RowUnits, int ColUnits, int StageSteps,
          int Stages>
struct Tile {
  static constexpr int kParts = Parts, kProducts = Parts == 2 ? 3 : 1;
  static constexpr int kRowWarps = RowWarps, kColWarps = ColWarps, kDepthWarps = DepthWarps;
  static constexpr int kRowUnits = RowUnits, kColUnits = ColUnits, kSteps = StageSteps, kStages = Stages;
  static constexpr int kRows = 16 * RowWarps * RowUnits, kTiles = ColWarps * ColUnits;
  static constexpr int kCols = kTileCols * kTiles;
  static constexpr int kWarps = RowWarps * ColWarps * DepthWarps, kThreads = kWarp * kWarps;
  static constexpr int kRowBytes = 64 * kSteps;  // of A in a stage: each 8 numbers as 16 + 16 bytes
  static constexpr int kABytes = kRows * kRowBytes, kBBytes = kSteps * kTiles * kWarp * 8 * Parts;
  static constexpr int kStride = kCols + 4;  // of C in shared memory
  static constexpr int kSumBytes = DepthWarps * kRows * kStride * 4;
  static constexpr int kRawBytes = kRows * kSteps * 64;
  static constexpr int kPipeBytes = 2 * (kABytes + kRawBytes) + Stages * kBBytes;
  static constexpr int kShared = kPipeBytes > kSumBytes ? kPipeBytes : kSumBytes;
};

// A tile's operands.
struct Operands {
  const float* a;  // first row, rows `a_stride` apart, zeros after the last number up to a multiple of 16
  int64_t a_stride;
  const float* b;    // fragments
  int steps, tiles;  // of B
};

// Copies A into shared memory: each thread copies the same four columns of every kRowsApart-th row, stage
// after stage, to its own place, and splits them from there into the stage that is multiplied. The places
// above avoid bank conflicts of stores and `ldmatrix`.
template <class T>
class StageOfA {
 public:
  static MDOPS_D int place(int row, int sixteen) { return row * T::kRowBytes + 16 * (sixteen ^ (row & 7)); }

  MDOPS_D StageOfA(const Operands& in, char* raw)
      : raw_(raw + 16 * threadIdx.x),
        depth_(kStepDepth * in.steps - 4 * static_cast<int>(threadIdx.x % kQuads)),
        from_(in.a + threadIdx.x / kQuads * in.a_stride + 4 * (threadIdx.x % kQuads)),
        apart_(kRowsApart * in.a_stride) {}

  MDOPS_D void copy(int stage) const {
    const int column = kStepDepth * T::kSteps * stage;
    const bool in_bounds = column < depth_;
    const uint32_t to = shared_address(raw_) + stage % 2 * T::kRawBytes;
    const float* from = in_bounds ? from_ + column : from_;
    unrolled<kLoads>([&](int n) { copy_async(to + 16 * n * T::kThreads, from + n * apart_, in_bounds); });
  }

  MDOPS_D void split_into(char* shared, int stage, const float* scales) const {
    const int row = threadIdx.x / kQuads, quad = threadIdx.x % kQuads;
    char* at[T::kParts];
    for (int k = 0; k < T::kParts; ++k) at[k] = shared + place(row, 2 * (quad / 2) + k) + 8 * (quad & 1);
    unrolled<kLoads>([&](int n) {
      const float4 x =
          *reinterpret_cast<const float4*>(raw_ + stage % 2 * T::kRawBytes + 16 * n * T::kThreads);
      const float s = scales[row + n * kRowsApart];
      uint2 parts[T::kParts];
      split(s * x, parts);
      unrolled<T::kParts>(
          [&](int k) { *reinterpret_cast<uint2*>(at[k] + n * kRowsApart * T::kRowBytes) = parts[k]; });
    });
  }

 private:
  static constexpr int kQuads = 4 * T::kSteps, kRowsApart = T::kThreads / kQuads;
  static constexpr int kLoads = T::kRows / kRowsApart;
  static_assert(T::kThreads % kQuads == 0 && kRowsApart % 8 == 0 && T::kRows % kRowsApart == 0);

  const char* raw_;
  int depth_;
  const float* from_;
  int64_t apart_;
};

// Tiles after the last are left unset: their columns are unused.
template <class T>
MDOPS_D void copy_stage_of_b(const Operands& in, int stage, int first_tile, uint32_t shared) {
  constexpr int of_tile = kWarp * T::kParts / 2;  // pieces of 16 bytes
  constexpr int all = T::kTiles * of_tile;
  const int pieces = min(T::kTiles, in.tiles - first_tile) * of_tile - static_cast<int>(threadIdx.x);
#pragma unroll
  for (int s = 0; s < T::kSteps; ++s) {
    const int step = stage * T::kSteps + s;
    if (step >= in.steps) break;
    const float* from = in.b + 4 * (of_tile * (step * in.tiles + first_tile) + static_cast<int>(threadIdx.x));
#pragma unroll
    for (int k = 0; k < all; k += T::kThreads)
      if (k < pieces) copy_async(shared + 16 * (s * all + k + threadIdx.x), from + 4 * k);
  }
}

// Adds the first `steps` steps of a stage to the sums, in float32 outside of the tensor cores: these round
// towards zero, which accumulates over a long depth. For TF32's accuracy it does not matter.
template <class T>
MDOPS_D void multiply_stage(const char* a, const char* b, int steps,
                            float (&sum)[T::kRowUnits][T::kColUnits][4]) {
  constexpr int group = T::kColUnits % 4 == 0 ? 4 : T::kColUnits % 3 == 0 ? 3 : T::kColUnits;
  const int lane = lane_index(), warp = threadIdx.x / kWarp;
  const int col_warp = warp % T::kColWarps, row_warp = warp / T::kColWarps % T::kRowWarps;
#pragma unroll 1
  for (int step = warp / (T::kColWarps * T::kRowWarps); step < min(steps, T::kSteps);
       step += T::kDepthWarps) {
    uint32_t left[T::kParts][T::kRowUnits][4];
    unrolled<T::kRowUnits>([&](int m) {
      const int row = 16 * (row_warp * T::kRowUnits + m) + lane % 16, eight = 2 * step + lane / 16;
#pragma unroll
      for (int k = 0; k < T::kParts; ++k)
        load_matrices(left[k][m], shared_address(a + StageOfA<T>::place(row, 2 * eight + k)));
    });
#pragma unroll
    for (int first = 0; first < T::kColUnits; first += group) {
      Fragment<T::kParts> right[group];
      float part[T::kRowUnits][group][4] = {};
#pragma unroll
      for (int n = 0; n < group; ++n)
        right[n] = reinterpret_cast<const Fragment<T::kParts>*>(
            b)[(step * T::kTiles + col_warp * T::kColUnits + first + n) * kWarp + lane];
      unrolled<T::kProducts, T::kRowUnits, group>([&](int product, int m, int n) {
        const auto& b_part = right[n].part[product == 1];
        multiply_here(T::kParts == 1 ? sum[m][first + n] : part[m][n], left[product == 2][m], b_part[0],
                      b_part[1]);
      });
      if constexpr (T::kParts == 2) {
        unrolled<T::kRowUnits, group, 4>([&](int m, int n, int c) { sum[m][first + n][c] += part[m][n][c]; });
      }
    }
  }
}

// The tile of C from the first column of `first_tile` on, in shared memory: [kRows][kStride] floats, times
// the rows' scales and those of B's columns. `scales` of the rows are in shared memory. Loads of B start
// before `begin_rows()`, those of A after it.
template <class T, class Begin>
MDOPS_D float* multiply_tile(const Operands& in, int first_tile, const float* scales, char* shared,
                             const Begin& begin_rows) {
  const int lane = lane_index(), warp = threadIdx.x / kWarp;
  const int col_warp = warp % T::kColWarps, row_warp = warp / T::kColWarps % T::kRowWarps;
  const int depth_warp = warp / (T::kColWarps * T::kRowWarps);
  const int stages = (in.steps + T::kSteps - 1) / T::kSteps;
  char* const b = shared + 2 * (T::kABytes + T::kRawBytes);
  float sum[T::kRowUnits][T::kColUnits][4] = {};
  const StageOfA<T> a(in, shared + 2 * T::kABytes);
  const auto copy_b = [&](int s) {
    if (s < stages) copy_stage_of_b<T>(in, s, first_tile, shared_address(b) + s % T::kStages * T::kBBytes);
  };
  const auto copy_a = [&](int s) {
    if (s < stages) a.copy(s);
    __pipeline_commit();
  };

  static_assert(T::kStages == 3);
  copy_b(0);
  copy_b(1);
  begin_rows();
  copy_a(0);
  copy_a(1);
  __pipeline_wait_prior(1);
  a.split_into(shared, 0, scales);
  for (int s = 0; s < stages; ++s) {
    __pipeline_wait_prior(0);  // stage s + 1 is there: this thread splits what it copied
    __syncthreads();
    // Half of the warps load and split while the other half multiply, to keep the tensor cores busy.
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == (warp < T::kWarps / 2 ? 0 : 1)) {
        copy_b(s + 2);
        copy_a(s + 2);
        if (s + 1 < stages) a.split_into(shared + (s + 1) % 2 * T::kABytes, s + 1, scales);
      } else if (first_tile + col_warp * T::kColUnits < in.tiles) {
        multiply_stage<T>(shared + s % 2 * T::kABytes, b + s % T::kStages * T::kBBytes,
                          in.steps - s * T::kSteps, sum);
      }
    }
  }
  __pipeline_wait_prior(0);
  __syncthreads();

  float* const c = reinterpret_cast<float*>(shared);
  unrolled<T::kRowUnits, T::kColUnits, 2>([&](int m, int n, int half) {
    const int row = 16 * (row_warp * T::kRowUnits + m) + lane / 4 + 8 * half;
    const int col = kTileCols * (col_warp * T::kColUnits + n) + 2 * (lane % 4);
    *reinterpret_cast<float2*>(c + (depth_warp * T::kRows + row) * T::kStride + col) =
        make_float2(sum[m][n][2 * half], sum[m][n][2 * half + 1]);
  });
  __syncthreads();
  return c;
}

// Four columns of the tile, with the parts of the depth summed in order.
template <class T>
MDOPS_D float4 tile_sum(const float* c, int row, int col) {
  float4 sum = *reinterpret_cast<const float4*>(c + row * T::kStride + col);
#pragma unroll
  for (int d = 1; d < T::kDepthWarps; ++d)
    sum += *reinterpret_cast<const float4*>(c + (d * T::kRows + row) * T::kStride + col);
  return sum;
}

}  // namespace mdops
