// Products of float32 matrices on Hopper's tensor cores, to float32's accuracy: the choice of kernels and of
// blocks.
#pragma once

#include <algorithm>

#include "linear/gpu_halves_run.h"
#include "linear/gpu_rows.h"
#include "linear/gpu_tiles.h"

namespace mdops::gpu_linear {

constexpr int64_t kMostStages = 320;  // of a part: each stage's sum is rounded

// Enough blocks to fill the chip, with at least four stages each.
inline Shape shape_of(const Gpu& gpu, int64_t rows, int64_t columns, int64_t depth) {
  const int64_t tiles = std::max<int64_t>(blocks_for(rows, kTileRows) * blocks_for(columns, kTileColumns), 1);
  const int64_t stages = blocks_for(depth, kDepth), chip = gpu.limits().multiprocessors;
  const int64_t filling = std::min({2 * chip / tiles, chip, stages / 4});
  const int64_t parts = std::max({filling, blocks_for(stages, kMostStages), int64_t{1}});
  const int64_t each = std::max<int64_t>(blocks_for(stages, parts), 1);
  return {rows, columns, depth, static_cast<int>(std::max<int64_t>(blocks_for(stages, each), 1)),
          gpu.int32_of("x", each)};
}

// The stages of a single part.
inline int stages_of(const Gpu& gpu, int64_t depth) {
  return gpu.int32_of("x", blocks_for(depth, kDepth));
}

// The same if C's rows may be strided: then it has one part.
inline Shape shape_of(const Gpu& gpu, const RowArgs& args) {
  if (args.c_line == args.columns) return shape_of(gpu, args.rows, args.columns, args.depth);
  return {args.rows, args.columns, args.depth, 1, stages_of(gpu, args.depth)};
}

// 64 or 56 columns per block, whichever leaves fewer columns of the last block idle.
inline int units_of(int64_t columns) {
  return blocks_for(columns, 56) * 56 < blocks_for(columns, 64) * 64 ? 7 : 8;
}

inline int64_t shared_for_rows(int units, int64_t depth) {
  return 8 * blocks_for(depth, kRow) * (8 * units * kRow) + kAlignment;
}

// Whether to use gpu_rows.h: if blocks fill half of the chip, or there are coefficients, and no sums are
// wanted, which it cannot compute. It reads two numbers of A's rows at once.
inline bool by_rows(const Gpu& gpu, const Args& args) {
  const Shape& s = args.shape;
  const int units = units_of(s.columns);
  return !args.sums && args.a.deep == 1 && s.depth % 2 == 0 && args.a.line % 2 == 0 && s.depth > 0 &&
         shared_for_rows(units, s.depth) <= gpu.limits().shared_bytes &&
         (args.coefficients.count > 1 || blocks_for(s.rows, kGroupRows) * blocks_for(s.columns, 8 * units) >=
                                             gpu.limits().multiprocessors / 2);
}

inline RowArgs rows_of(const Args& args) {
  const Shape& s = args.shape;
  return {s.rows, s.columns,   s.depth,           1,         args.a, args.b, args.bias,
          args.c, args.c_line, args.coefficients, args.added};
}

// Floats of workspace that a product needs.
inline int64_t workspace(const Gpu& gpu, const Args& args) {
  const Shape& s = args.shape;
  return s.parts > 1 && !by_rows(gpu, args) && (args.sums || !takes_halves(gpu, rows_of(args)))
             ? s.parts * (s.rows + 1) * s.columns
             : 0;
}

template <int kUnits>
void run_rows(const Gpu& gpu, const Args& args) {
  const Shape& s = args.shape;
  const int64_t wide = blocks_for(s.columns, 8 * kUnits), units = blocks_for(s.rows, kGroupRows);
  const int64_t beside = wide * args.coefficients.count, chip = gpu.limits().multiprocessors;
  // Coefficients may not fill the chip evenly: so there are several rounds of blocks.
  const int64_t down =
      args.coefficients.count > 1
          ? std::clamp<int64_t>(4 * chip / beside, 1, blocks_for(units, kRowThreads / kGroup))
          : std::clamp<int64_t>(chip / wide, 1, units);
  RowArgs rows = rows_of(args);
  rows.wide = gpu.int32_of("weight", wide);
  gpu.launch(rows_kernel<kUnits>, down * beside, kRowThreads, shared_for_rows(kUnits, s.depth), rows);
}

// Computes C, and the sums of B's columns if wanted. The workspace is aligned to 16 bytes.
inline void multiply(const Gpu& gpu, const Args& args, float* workspace) {
  if (!args.sums && takes_halves(gpu, rows_of(args))) return run_halves(gpu, rows_of(args));
  if (by_rows(gpu, args))
    return units_of(args.shape.columns) == 8 ? run_rows<8>(gpu, args) : run_rows<7>(gpu, args);
  const Shape& s = args.shape;
  Args first = args;
  if (s.parts > 1) {
    first.c = workspace, first.bias = nullptr;
    if (args.sums) first.sums = workspace + s.parts * s.rows * s.columns;
  }
  gpu.launch(
      tile_kernel,
      blocks_for(s.rows, kTileRows) * blocks_for(s.columns, kTileColumns) * s.parts * args.coefficients.count,
      kTileThreads, int64_t{8} * kLow + kAlignment, first);
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

}  // namespace mdops::gpu_linear
