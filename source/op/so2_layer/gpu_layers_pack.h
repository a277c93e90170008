// The weights of an edge's layers as a stream, in the order in which every tile of edges multiplies with them
// (gpu_layers.h): chunks of columns, each in stages of 32 numbers of the depth, with one or two parts of
// float16 per number. A chunk is scaled by a power of two.
#pragma once

#include "common/gpu.h"
#include "common/gpu_warp.h"
#include "gemm/gpu_parts.h"
#include "so2_layer/so2_layer.h"

namespace mdops::gpu_so2 {

constexpr int kOwnChannels = 32, kOwnDegrees = 2;
constexpr int kOwnMiddle = (kOwnDegrees + 1) * kOwnChannels, kOwnSide = kOwnDegrees * kOwnChannels;
constexpr int kMostLayers = 4;
constexpr int kOwnDepth = 32;  // numbers of the depth in a stage

// The columns of W, of the gates' logits, of [U V]; of the gates transposed, of W^T, of [U V]^T.
enum class Columns { middle, logits, sides, slopes, back_middle, back_sides };

constexpr int kLayersPackWarps = 16, kLayersPackThreads = kLayersPackWarps * kWarp;

struct LayersChunk {
  Columns kind;
  int layer, columns, depth;

  MDOPS_HD int stages() const { return depth / kOwnDepth; }
  // The blocks that pack it: each has kLayersPackWarps columns of one stage.
  MDOPS_HD int blocks() const { return columns / kLayersPackWarps * stages(); }
  MDOPS_HD int stage_bytes(int parts) const { return columns * kOwnDepth * 2 * parts; }
};

// The chunks of a pass: forward, layer by layer; backward, first the last layer, which has no gate, then the
// others forward and back.
struct LayersStream {
  static constexpr int kMostChunks = 6 * kMostLayers, kMostStages = 18 * kMostLayers;
  LayersChunk chunks[kMostChunks];
  int count = 0, parts;

  LayersStream(int layers, bool back, int parts_) : parts(parts_) {
    if (back) add_back(layers - 1, false);
    for (int n = 0; n < layers - back; ++n) add(n, n + 1 < layers);
    for (int n = layers - 2; back && n >= 0; --n) add_back(n, true);
  }

  MDOPS_HD int blocks() const {
    int sum = 0;
    for (int k = 0; k < count; ++k) sum += chunks[k].blocks();
    return sum;
  }
  MDOPS_HD int64_t bytes() const {
    int64_t sum = 0;
    for (int k = 0; k < count; ++k) sum += chunks[k].stages() * chunks[k].stage_bytes(parts);
    return sum;
  }

 private:
  void add(int layer, bool gated) {
    chunks[count++] = {Columns::middle, layer, kOwnMiddle, kOwnMiddle};
    if (gated) chunks[count++] = {Columns::logits, layer, kOwnSide, kOwnMiddle};
    chunks[count++] = {Columns::sides, layer, kOwnSide, 2 * kOwnSide};
  }
  void add_back(int layer, bool gated) {
    if (gated) chunks[count++] = {Columns::slopes, layer, kOwnChannels, kOwnSide};
    chunks[count++] = {Columns::back_middle, layer, kOwnMiddle, kOwnMiddle};
    chunks[count++] = {Columns::back_sides, layer, kOwnSide, 2 * kOwnSide};
  }
};

// Where the stages of the ring begin.
struct LayersStages {
  int count = 0;
  int32_t begins[LayersStream::kMostStages + 1] = {};

  explicit LayersStages(const LayersStream& stream) {
    for (int k = 0; k < stream.count; ++k)
      for (int s = 0; s < stream.chunks[k].stages(); ++s, ++count)
        begins[count + 1] = begins[count] + stream.chunks[k].stage_bytes(stream.parts);
  }
  MDOPS_HD int64_t begin(int stage) const { return begins[stage]; }
};

template <class T>
struct LayersWeights {
  const T *weight[kMostLayers], *both[kMostLayers], *gate[kMostLayers];
};

// Which of sixteen columns, or numbers of the depth, the tensor cores have at place n: the four of a lane are
// side by side in memory.
MDOPS_HD constexpr int place_of_lanes(int n) {
  return n / 16 * 16 + n % 8 / 2 * 4 + n / 8 % 2 * 2 + n % 2;
}

// Number k of the depth in a chunk's column n.
MDOPS_D float number_of(const LayersWeights<float>& of, const LayersChunk& chunk, int k, int n) {
  const float *const weight = of.weight[chunk.layer], *const both = of.both[chunk.layer];
  const bool second = k >= kOwnSide;
  const int i = second ? k - kOwnSide : k;  // of U or V
  switch (chunk.kind) {
    case Columns::middle:
      return __ldg(weight + k * kOwnMiddle + n);
    case Columns::logits: {
      const float* const gate = of.gate[chunk.layer] + n;
      float sum = 0;
#pragma unroll 8
      for (int s = 0; s < kOwnChannels; ++s)
        sum += __ldg(weight + k * kOwnMiddle + s) * __ldg(gate + s * kOwnSide);
      return sum;
    }
    case Columns::sides:
      return __ldg(both + i * 2 * kOwnSide + (second ? kOwnSide : 0) + n);
    case Columns::slopes:
      return __ldg(of.gate[chunk.layer] + n * kOwnSide + k);
    case Columns::back_middle:
      return __ldg(weight + n * kOwnMiddle + k);
    default: {
      const float x = __ldg(both + n * 2 * kOwnSide + (second ? kOwnSide : 0) + i);
      return second ? -x : x;
    }
  }
}

// The largest of `count` numbers, a multiple of four, by a block.
MDOPS_D float largest_of(const float* numbers, int count) {
  __shared__ float of_warps[kLayersPackWarps];
  float largest = 0;
#pragma unroll 4
  for (int k = 4 * static_cast<int>(threadIdx.x); k < count; k += 4 * kLayersPackThreads) {
    const float4 x = __ldg(reinterpret_cast<const float4*>(numbers + k));
    largest = fmaxf(largest, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
  }
  largest = warp_largest(largest);
  __syncthreads();
  if (lane_index() == 0) of_warps[threadIdx.x / kWarp] = largest;
  __syncthreads();
  largest = 0;
  for (int w = 0; w < kLayersPackWarps; ++w) largest = fmaxf(largest, of_warps[w]);
  return largest;
}

// A bound of a chunk's numbers: the largest one, but for logits a bound of their sums.
MDOPS_D float bound_of(const LayersWeights<float>& of, const LayersChunk& chunk) {
  const int n = chunk.layer;
  constexpr int kGate = kOwnChannels * kOwnSide;
  if (chunk.kind == Columns::sides || chunk.kind == Columns::back_sides)
    return largest_of(of.both[n], 2 * kOwnSide * kOwnSide);
  if (chunk.kind == Columns::slopes) return largest_of(of.gate[n], kGate);
  const float largest = largest_of(of.weight[n], kOwnMiddle * kOwnMiddle);
  return chunk.kind == Columns::logits ? kOwnChannels * largest * largest_of(of.gate[n], kGate) : largest;
}

// A warp has a column; `unscale` gets the chunk's inverse scale. Each instruction runs once, as fetching
// instructions takes longer than running them.
static __global__ void __launch_bounds__(kLayersPackThreads)
    pack_layers_kernel(const LayersWeights<float> weights, const LayersStream stream, char* packed,
                       float* unscale) {
  int block = static_cast<int>(blockIdx.x), index = 0;
  while (block >= stream.chunks[index].blocks()) {
    const LayersChunk& chunk = stream.chunks[index++];
    block -= chunk.blocks(), packed += chunk.stages() * chunk.stage_bytes(stream.parts);
  }
  const LayersChunk chunk = stream.chunks[index];
  const float scale = scale_for(bound_of(weights, chunk));
  if (block == 0 && threadIdx.x == 0) unscale[index] = inverse_power(scale);
  const int n = block / chunk.stages() * kLayersPackWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int s = block % chunk.stages(), lane = lane_index();
  char* const to = packed + s * chunk.stage_bytes(stream.parts);
  const float number =
      scale * number_of(weights, chunk, kOwnDepth * s + place_of_lanes(lane), place_of_lanes(n));
  const __half high = __float2half_rn(number);
  if (stream.parts == 2) {
    *reinterpret_cast<__half*>(to + wide_place(n, lane, 0)) = high;
    *reinterpret_cast<__half*>(to + wide_place(n, lane, 1)) = __float2half_rn(number - __half2float(high));
  } else {
    constexpr int kRowBytes = 2 * kOwnDepth;
    const int piece = lane / 8 ^ (n / 2 & 3);
    *reinterpret_cast<__half*>(to + n * kRowBytes + 16 * piece + 2 * (lane % 8)) = high;
  }
}

}  // namespace mdops::gpu_so2
