// The weights of wide layers as a stream, in the order in which every tile of edges multiplies with them
// (gpu_wide.h): chunks of columns, each in stages of the depth, with one or two parts of float16 per number.
// A column is scaled by a power of two. For groups of channels that do not mix, a chunk has the columns of
// one after those of the other, and of each only its own group's depth.
#pragma once

#include "common/gpu.h"
#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "gemm/gpu_parts.h"
#include "so2_layer/so2_layer.h"

namespace mdops::gpu_so2 {

constexpr int kWideChannels = 64, kMostDegrees = 3;
constexpr int kStageBytes = 8192;

// The depth of a stage with so many columns, parts and groups: at most a group's share of 64.
MDOPS_HD constexpr int stage_depth(int columns, int parts, int groups) {
  const int room = kStageBytes / (2 * parts * columns), of_group = kWideChannels / groups;
  return room < of_group ? room : of_group;
}

enum class Chunk {
  scalars,      // s = z_00
  gates,        // the logits of a degree's gates, from s
  middle,       // two degrees of z_0
  sides,        // U and V of degree l
  slopes,       // from the gates' gradients to that of s
  back_middle,  // two degrees of dz_0 W^T; with gates, s ends the depth
  back_sides,   // those of dz_-l and dz_+l
};

// One of the products: `index` is the degree, or counts pairs of degrees.
struct WideChunk {
  Chunk kind;
  int index, depth, columns;  // depth: in 64 numbers

  MDOPS_HD int stages(int parts, int groups) const {
    return kWideChannels / groups * depth / stage_depth(columns, parts, groups);
  }
};

struct WideShape {
  int degrees, parts, groups;
  bool back, gated;

  MDOPS_HD int pairs() const { return (degrees + 2) / 2; }
  MDOPS_HD int chunks() const {
    const int own = pairs() + degrees;
    if (!gated) return own;
    return degrees + own + (back ? 2 : 0);
  }
  MDOPS_HD WideChunk chunk(int k) const {
    const int two = 2 * kWideChannels;
    if (gated) {
      if (back && k == 0) return {Chunk::scalars, 0, degrees + 1, kWideChannels};
      if (k > 0 && k <= degrees) return {Chunk::gates, k, 1, kWideChannels};
      if (k > 0) k -= degrees;
    }
    if (gated && back) {
      --k;
      if (k < degrees) return {Chunk::back_sides, k + 1, degrees, two};
      k -= degrees;
      if (k == 0) return {Chunk::slopes, 0, degrees, kWideChannels};
      --k;
    }
    if (k < pairs())
      return {back ? Chunk::back_middle : Chunk::middle, k, degrees + 1,
              2 * k < degrees ? two : kWideChannels};
    return {back ? Chunk::back_sides : Chunk::sides, k - pairs() + 1, degrees, two};
  }
  MDOPS_HD int stages() const {
    int sum = 0;
    for (int k = 0; k < chunks(); ++k) sum += chunk(k).stages(parts, groups);
    return sum;
  }
  MDOPS_HD int columns() const {
    int sum = 0;
    for (int k = 0; k < chunks(); ++k) sum += chunk(k).columns;
    return sum;
  }
};

// The place of a number's part in its stage, in bytes: rows of 64 bytes for 128 columns, of 128 bytes for 64,
// with the second part in their second halves.
MDOPS_D int stage_place(bool wide, int column, int k, int part) {
  if (!wide) return wide_place(column, k, part);
  return 64 * column + (((k / 8 + 2 * part) ^ (column / 2 & 3)) << 4) + 2 * (k % 8);
}

// The column at place n of a chunk of so many columns: of each sixteen a thread has four side by side, which
// it reads and writes together.
MDOPS_D int column_at(int n, int columns, int groups) {
  const int of_group = columns / groups, width = kWideChannels / groups;
  const int group = n / of_group, half = n % of_group / width, c = n % width;
  return kWideChannels * half + width * group + c / 16 * 16 + c / 2 % 4 * 4 + c / 8 % 2 * 2 + c % 2;
}

// A chunk's column among the layer's weights.
struct WideColumn {
  const float* first;
  int step;
};
MDOPS_D WideColumn column_of(const So2Args<float>& args, const WideChunk& chunk, int n) {
  const int c = kWideChannels, middle = static_cast<int>(args.middle()), side = static_cast<int>(args.side());
  const int l = chunk.index, place = n / c * side, own = (l - 1) * c + n % c;  // of both signs
  switch (chunk.kind) {
    case Chunk::scalars:
      return {args.weight + n, middle};
    case Chunk::gates:
      return {args.gate + own, side};
    case Chunk::middle:
      return {args.weight + 2 * l * c + n, middle};
    case Chunk::sides:
      return {args.both + place + own, 2 * side};
    case Chunk::slopes:
      return {args.gate + n * side, 1};
    case Chunk::back_middle:
      return {args.weight + (2 * l * c + n) * middle, 1};
    default:
      return {args.both + own * 2 * side + place, 1};
  }
}

constexpr int kPackColumns = 8, kPackThreads = kPackColumns * kWarp;
constexpr int kMostDepth = (kMostDegrees + 1) * kWideChannels;

// Columns that a block packs, before scaling.
using PackedColumns = float[kPackColumns][kMostDepth + 1];

// A warp has a column, which all warps of the block read; for both signs, a column of U and one of V, with
// one scale. `unscale` gets the inverse scale.
static __global__ void __launch_bounds__(kPackThreads)
    pack_wide_kernel(const So2Args<float> args, const WideShape shape, char* packed, float* unscale) {
  __shared__ PackedColumns x[2];
  int n = static_cast<int>(blockIdx.x) * kPackColumns, stage = 0, index = 0;
  while (n >= shape.chunk(index).columns) {
    n -= shape.chunk(index).columns;
    stage += shape.chunk(index++).stages(shape.parts, shape.groups);
  }
  const WideChunk chunk = shape.chunk(index);
  const bool wide = chunk.columns > kWideChannels;
  const int width = kWideChannels / shape.groups, group = n / (chunk.columns / shape.groups);
  const int numbers = width * chunk.depth, depth = stage_depth(chunk.columns, shape.parts, shape.groups);
  const bool of_signs = chunk.kind == Chunk::sides || chunk.kind == Chunk::back_sides;
  if (of_signs && n / width % 2 == 1) return;  // the block of U's column has it
  const int halves = of_signs ? 2 : 1;
  const bool transposed =
      chunk.kind == Chunk::slopes || chunk.kind == Chunk::back_middle || chunk.kind == Chunk::back_sides;
  const int begin = transposed ? lane_index() : static_cast<int>(threadIdx.x) / kPackColumns;
  const int c = transposed ? warp_index() : static_cast<int>(threadIdx.x) % kPackColumns;
  const int first = chunk.kind == Chunk::back_middle && shape.gated ? kWideChannels : 0;
  // All is loaded before the first is needed.
  float found[2][kMostDepth / kWarp];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half == halves) break;
    const int place = column_at(n + c, chunk.columns, shape.groups) + half * kWideChannels;
    const WideColumn column = column_of(args, chunk, place);
#pragma unroll
    for (int j = 0; j < kMostDepth / kWarp; ++j) {
      if (kWarp * j >= numbers) break;
      const int k = begin + kWarp * j, at = first + k / width * kWideChannels + group * width + k % width;
      found[half][j] =
          __ldg(column.first +
                (at < kWideChannels * chunk.depth ? at : at - kWideChannels * chunk.depth) * column.step);
    }
  }
  unrolled<2, kMostDepth / kWarp>([&](int half, int j) {
    if (half < halves && kWarp * j < numbers) x[half][c][begin + kWarp * j] = found[half][j];
  });
  __syncthreads();
  const int own = warp_index();
  float largest = 0;
  for (int half = 0; half < halves; ++half)
    for (int k = lane_index(); k < numbers; k += kWarp) largest = fmaxf(largest, fabsf(x[half][own][k]));
  const float scale = scale_for(warp_largest(largest));
  for (int half = 0; half < halves; ++half) {
    const int column = n + own + half * width;
    if (lane_index() == 0) unscale[blockIdx.x * kPackColumns + own + half * width] = inverse_power(scale);
    for (int k = lane_index(); k < numbers; k += kWarp) {
      char* const to = packed + static_cast<int64_t>(stage + k / depth) * kStageBytes;
      const float number = scale * x[half][own][k];
      const __half high = __float2half_rn(number);
      *reinterpret_cast<__half*>(to + stage_place(wide, column, k % depth, 0)) = high;
      if (shape.parts == 2)
        *reinterpret_cast<__half*>(to + stage_place(wide, column, k % depth, 1)) =
            __float2half_rn(number - __half2float(high));
    }
  }
}

}  // namespace mdops::gpu_so2
