// The weights of wide layers as a stream, in the order in which every tile of edges multiplies with them
// (gpu_wide.h): chunk after chunk of columns, of each stage after stage of the depth, two parts of float16 of
// each number. A column is brought to one size by a power of two.
#pragma once

#include "common/gpu.h"
#include "common/rows.h"
#include "gemm/gpu_parts.h"
#include "so2_layer/so2_layer.h"

namespace mdops {

namespace gpu_so2 {

constexpr int kWideChannels = 64, kMostDegrees = 3;
constexpr int kStageBytes = 8192;  // 128 columns of 16 numbers of the depth, or 64 of 32

enum class Chunk {
  scalars,      // s = z_00
  gated,        // z_0l and the logits of its gate
  gates,        // the logits of two degrees' gates
  middle,       // two degrees of z_0
  sides,        // z_-l and z_+l
  slopes,       // from the gates' gradients to that of s
  back_middle,  // two degrees of dz_0 W^T
  back_sides,   // degree l of both signs
};

// Of one of the products: `index` is the degree, or counts pairs of degrees.
struct WideChunk {
  Chunk kind;
  int index, depth, columns;  // depth: in 64 numbers

  MDOPS_HD int stages() const { return depth * columns / 32; }
};

struct WideShape {
  int degrees;
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
      if (!back) return {Chunk::sides, k - degrees, 2 * degrees, two};
      if (k <= gate_pairs())
        return {Chunk::gates, 2 * k - 1, degrees + 1, 2 * k <= degrees ? two : kWideChannels};
      if (k == 1 + gate_pairs()) return {Chunk::slopes, 0, degrees, kWideChannels};
      k -= 2 + gate_pairs();
    }
    if (k < pairs())
      return {back ? Chunk::back_middle : Chunk::middle, k, degrees + 1,
              2 * k < degrees ? two : kWideChannels};
    return {back ? Chunk::back_sides : Chunk::sides, k - pairs() + 1, 2 * degrees, two};
  }
  MDOPS_HD int stages() const {
    int sum = 0;
    for (int k = 0; k < chunks(); ++k) sum += chunk(k).stages();
    return sum;
  }
  MDOPS_HD int columns() const {
    int sum = 0;
    for (int k = 0; k < chunks(); ++k) sum += chunk(k).columns;
    return sum;
  }
};

// Where a number's parts stand in its stage, in bytes: rows of 64 bytes for 128 columns, of 128 for 64.
__device__ __forceinline__ int stage_place(bool wide, int column, int k, int part) {
  if (!wide) return wide_place(column, k, part);
  return 64 * column + (((k / 8 + 2 * part) ^ (column / 2 & 3)) << 4) + 2 * (k % 8);
}

// Number k of the depth of a chunk's column n, where it is one of the layer's weights.
__device__ __forceinline__ float weight_of(const So2Args<float>& args, const WideChunk& chunk, int k, int n) {
  const int c = kWideChannels, middle = static_cast<int>(args.middle()), side = static_cast<int>(args.side());
  const int l = chunk.index, own = n % c;
  const bool second = n >= c, positive = k >= side;
  const int i = positive ? k - side : k;  // of both signs
  switch (chunk.kind) {
    case Chunk::scalars:
      return __ldg(args.weight + k * middle + n);
    case Chunk::gated:
      return __ldg(args.weight + k * middle + l * c + n);
    case Chunk::middle:
      return __ldg(args.weight + k * middle + 2 * l * c + n);
    case Chunk::sides: {
      const float x = __ldg(args.both + i * 2 * side + (positive != second ? side : 0) + (l - 1) * c + own);
      return positive && !second ? -x : x;
    }
    case Chunk::slopes:
      return __ldg(args.gate + n * side + k);
    case Chunk::back_middle:
      return __ldg(args.weight + (2 * l * c + n) * middle + k);
    default: {
      const float x = __ldg(args.both + ((l - 1) * c + own) * 2 * side + (positive != second ? side : 0) + i);
      return second && !positive ? -x : x;
    }
  }
}

constexpr int kPackThreads = 128,
              kMostPacked = 2 * kMostDegrees * kWideChannels / kWarp;  // numbers of a lane

// The logits' column n from the chunk's degree on: W's first columns times a column of G. Each lane's are
// numbers l, l + 32, ...
__device__ __forceinline__ void logits_of(const So2Args<float>& args, const WideChunk& chunk, int n,
                                          float (&x)[kMostPacked]) {
  const int middle = static_cast<int>(args.middle()), side = static_cast<int>(args.side());
  const float* const gate = args.gate + (chunk.index - 1) * kWideChannels + n;
  for (int s = 0; s < kWideChannels; s += 4) {
    float g[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) g[j] = __ldg(gate + (s + j) * side);
#pragma unroll
    for (int i = 0; i < (kMostDegrees + 1) * kWideChannels / kWarp; ++i) {
      const int k = i * kWarp + lane_index();
      if (k >= middle) continue;
      const float4 w = __ldg(reinterpret_cast<const float4*>(args.weight + k * middle + s));
      x[i] += w.x * g[0] + w.y * g[1] + w.z * g[2] + w.w * g[3];
    }
  }
}

// A warp a column; `unscale` gets what undoes its scale.
static __global__ void __launch_bounds__(kPackThreads)
    pack_wide_kernel(const So2Args<float> args, const WideShape shape, char* packed, float* unscale) {
  const int column = static_cast<int>(blockIdx.x * (kPackThreads / kWarp) + threadIdx.x / kWarp);
  int n = column, stage = 0, index = 0;
  while (index < shape.chunks() && n >= shape.chunk(index).columns) {
    n -= shape.chunk(index).columns;
    stage += shape.chunk(index++).stages();
  }
  if (index == shape.chunks()) return;
  const WideChunk chunk = shape.chunk(index);
  const bool wide = chunk.columns > kWideChannels;
  const int depth = wide ? 16 : 32;
  float x[kMostPacked] = {}, largest = 0;
  const int logit = chunk.kind == Chunk::gates ? n : chunk.kind == Chunk::gated ? n - kWideChannels : -1;
  if (logit >= 0) {
    logits_of(args, chunk, logit, x);
  } else {
#pragma unroll
    for (int i = 0; i < kMostPacked; ++i) {
      const int k = i * kWarp + lane_index();
      if (k < chunk.depth * 64) x[i] = weight_of(args, chunk, k, n);
    }
  }
#pragma unroll
  for (int i = 0; i < kMostPacked; ++i) largest = fmaxf(largest, fabsf(x[i]));
  const float scale = scale_for(warp_largest(largest));
  if (lane_index() == 0) unscale[column] = inverse_power(scale);
#pragma unroll
  for (int i = 0; i < kMostPacked; ++i) {
    const int k = i * kWarp + lane_index();
    if (k >= chunk.depth * 64) continue;
    char* const to = packed + static_cast<int64_t>(stage + k / depth) * kStageBytes;
    const __half high = __float2half_rn(scale * x[i]);
    *reinterpret_cast<__half*>(to + stage_place(wide, n, k % depth, 0)) = high;
    *reinterpret_cast<__half*>(to + stage_place(wide, n, k % depth, 1)) =
        __float2half_rn(scale * x[i] - __half2float(high));
  }
}

}  // namespace gpu_so2

}  // namespace mdops
