// The weights of wide layers as a stream, in the order in which every tile of edges multiplies with them
// (gpu_wide.h): chunk after chunk of columns, of each stage after stage of the depth, one or two parts of
// float16 of each number. A column is brought to one size by a power of two.
#pragma once

#include "common/gpu.h"
#include "common/rows.h"
#include "gemm/gpu_parts.h"
#include "so2_layer/so2_layer.h"

namespace mdops {

namespace gpu_so2 {

constexpr int kWideChannels = 64, kMostDegrees = 3;
constexpr int kStageBytes = 8192;

// Of how many numbers of the depth a stage has so many columns, in so many parts.
MDOPS_HD constexpr int stage_depth(int columns, int parts) {
  return kStageBytes / (2 * parts * columns);
}

enum class Chunk {
  scalars,      // s = z_00
  gated,        // z_0l and the logits of its gate
  gates,        // the logits of two degrees' gates
  middle,       // two degrees of z_0
  sides,        // U and V of degree l
  slopes,       // from the gates' gradients to that of s
  back_middle,  // two degrees of dz_0 W^T
  back_sides,   // those of dz_-l and dz_+l
};

// Of one of the products: `index` is the degree, or counts pairs of degrees.
struct WideChunk {
  Chunk kind;
  int index, depth, columns;  // depth: in 64 numbers

  MDOPS_HD int stages(int parts) const { return 64 * depth / stage_depth(columns, parts); }
};

struct WideShape {
  int degrees, parts;
  bool back, gated;

  MDOPS_HD int pairs() const { return (degrees + 2) / 2; }
  MDOPS_HD int gate_pairs() const { return (degrees + 1) / 2; }
  MDOPS_HD int chunks() const {
    const int own = pairs() + degrees;
    if (!gated) return own;
    return back ? 2 + gate_pairs() + own : 1 + 2 * degrees;
  }
  MDOPS_HD WideChunk chunk(int k) const {
    const int two = 2 * kWideChannels;
    if (gated) {
      if (k == 0) return {Chunk::scalars, 0, degrees + 1, kWideChannels};
      if (!back && k <= degrees) return {Chunk::gated, k, degrees + 1, two};
      if (!back) return {Chunk::sides, k - degrees, degrees, two};
      if (k <= gate_pairs())
        return {Chunk::gates, 2 * k - 1, degrees + 1, 2 * k <= degrees ? two : kWideChannels};
      k -= 1 + gate_pairs();
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
    for (int k = 0; k < chunks(); ++k) sum += chunk(k).stages(parts);
    return sum;
  }
  MDOPS_HD int columns() const {
    int sum = 0;
    for (int k = 0; k < chunks(); ++k) sum += chunk(k).columns;
    return sum;
  }
};

// Where a number's parts stand in its stage, in bytes: rows of 64 bytes for 128 columns, of 128 for 64, with
// the second part in their second halves.
__device__ __forceinline__ int stage_place(bool wide, int column, int k, int part) {
  if (!wide) return wide_place(column, k, part);
  return 64 * column + (((k / 8 + 2 * part) ^ (column / 2 & 3)) << 4) + 2 * (k % 8);
}

// Which column stands at place n of a chunk: of each sixteen a thread has four side by side, which is how it
// reads and writes them.
__device__ __forceinline__ int column_at(int n) {
  return n / 16 * 16 + n / 2 % 4 * 4 + n / 8 % 2 * 2 + n % 2;
}

// Number k of the depth of a chunk's column n, where it is one of the layer's weights.
__device__ __forceinline__ float weight_of(const So2Args<float>& args, const WideChunk& chunk, int k, int n) {
  const int c = kWideChannels, middle = static_cast<int>(args.middle()), side = static_cast<int>(args.side());
  const int l = chunk.index, place = n / c * side, own = (l - 1) * c + n % c;  // of both signs
  switch (chunk.kind) {
    case Chunk::scalars:
      return __ldg(args.weight + k * middle + n);
    case Chunk::gated:
      return __ldg(args.weight + k * middle + l * c + n);
    case Chunk::middle:
      return __ldg(args.weight + k * middle + 2 * l * c + n);
    case Chunk::sides:
      return __ldg(args.both + k * 2 * side + place + own);
    case Chunk::slopes:
      return __ldg(args.gate + n * side + k);
    case Chunk::back_middle:
      return __ldg(args.weight + (2 * l * c + n) * middle + k);
    default:
      return __ldg(args.both + own * 2 * side + place + k);
  }
}

constexpr int kPackColumns = 8, kPackThreads = kPackColumns * kWarp;
constexpr int kMostDepth = (kMostDegrees + 1) * kWideChannels;

// Columns that a block packs, before they are brought to one size.
using PackedColumns = float[kPackColumns][kMostDepth + 1];

// Those of logits from place n on, counted from the chunk's degree: W's first columns times columns of G.
__device__ __forceinline__ void place_logits(const So2Args<float>& args, const WideChunk& chunk, int n,
                                             PackedColumns& x) {
  const int middle = static_cast<int>(args.middle()), side = static_cast<int>(args.side());
  __shared__ float gates[kWideChannels][kPackColumns];
  for (int i = threadIdx.x; i < kWideChannels * kPackColumns; i += kPackThreads)
    gates[i / kPackColumns][i % kPackColumns] =
        __ldg(args.gate + i / kPackColumns * side + (chunk.index - 1) * kWideChannels +
              column_at(n + i % kPackColumns));
  __syncthreads();
  for (int k = threadIdx.x; k < middle; k += kPackThreads) {
    float sum[kPackColumns] = {};
#pragma unroll 4
    for (int s = 0; s < kWideChannels; s += 4) {
      const float4 w = __ldg(reinterpret_cast<const float4*>(args.weight + k * middle + s));
#pragma unroll
      for (int c = 0; c < kPackColumns; ++c)
        sum[c] += w.x * gates[s][c] + w.y * gates[s + 1][c] + w.z * gates[s + 2][c] + w.w * gates[s + 3][c];
    }
#pragma unroll
    for (int c = 0; c < kPackColumns; ++c) x[c][k] = sum[c];
  }
}

// A warp a column, read by all of the block's, or of both signs that of U and that of V, which have one
// scale; `unscale` gets what undoes it.
static __global__ void __launch_bounds__(kPackThreads)
    pack_wide_kernel(const So2Args<float> args, const WideShape shape, char* packed, float* unscale) {
  __shared__ PackedColumns x[2];
  int n = static_cast<int>(blockIdx.x) * kPackColumns, stage = 0, index = 0;
  while (n >= shape.chunk(index).columns) {
    n -= shape.chunk(index).columns;
    stage += shape.chunk(index++).stages(shape.parts);
  }
  const WideChunk chunk = shape.chunk(index);
  const bool wide = chunk.columns > kWideChannels;
  const int numbers = 64 * chunk.depth, depth = stage_depth(chunk.columns, shape.parts);
  const int logit = chunk.kind == Chunk::gates ? n : chunk.kind == Chunk::gated ? n - kWideChannels : -1;
  const bool of_signs = chunk.kind == Chunk::sides || chunk.kind == Chunk::back_sides;
  if (of_signs && n >= kWideChannels) return;  // the block of U's column has it
  const int halves = of_signs ? 2 : 1;
  if (logit >= 0) {
    place_logits(args, chunk, logit, x[0]);
  } else {
    const bool transposed =
        chunk.kind == Chunk::slopes || chunk.kind == Chunk::back_middle || chunk.kind == Chunk::back_sides;
    for (int i = threadIdx.x; i < numbers * kPackColumns; i += kPackThreads) {
      const int k = transposed ? i % numbers : i / kPackColumns;
      const int c = transposed ? i / numbers : i % kPackColumns;
      for (int half = 0; half < halves; ++half)
        x[half][c][k] = weight_of(args, chunk, k, column_at(n + c) + half * kWideChannels);
    }
  }
  __syncthreads();
  const int own = warp_index();
  float largest = 0;
  for (int half = 0; half < halves; ++half)
    for (int k = lane_index(); k < numbers; k += kWarp) largest = fmaxf(largest, fabsf(x[half][own][k]));
  const float scale = scale_for(warp_largest(largest));
  for (int half = 0; half < halves; ++half) {
    const int column = n + own + half * kWideChannels;
    if (lane_index() == 0)
      unscale[blockIdx.x * kPackColumns + own + half * kWideChannels] = inverse_power(scale);
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

}  // namespace gpu_so2

}  // namespace mdops
