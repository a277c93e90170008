// Packing a net for a GPU, on the GPU: one kernel for all fragments, two for all units of a kind of chain.
#pragma once

#include "gemm/gpu_parts.h"

namespace mdops {

// A hidden layer, or the output layer; null: zeros, and ones for timesteps.
struct LayerWeights {
  const float *weight, *bias, *timestep;  // (inputs, neurons), (neurons,), (neurons,)
};

// The tiles and the scale of a call's only net, or nulls.
struct AloneNet {
  int32_t* tile_type;
  double* scale;
  int tiles;
};

struct PackArgs {
  GpuNetShape net;
  GpuNet to;
  LayerWeights layers[GpuNetShape::kMostLayers + 1];  // the output layer last
  int inputs;                                         // rows of the first weights: zeros up to net.inputs
  int padded[GpuNetShape::kMostLayers];               // sizes of the layers' vectors, zeros from neurons on
  int vectors;  // blocks before a kernel's own, which write vectors: one per layer, or none
  AloneNet alone;
  float* packed;
};
static_assert(sizeof(PackArgs) <= 4096);

// Layer n of a net as the matrix of its forward or its backward product; zero outside of the weights.
struct LayerMatrix {
  const float* weight;
  int inputs, neurons;
  bool backward;

  __device__ LayerMatrix(const PackArgs& p, int n, bool backward)
      : weight(p.layers[n].weight),
        inputs(n ? p.net.neurons[n - 1] : p.inputs),
        neurons(p.net.neurons[n]),
        backward(backward) {}

  __device__ float at(int row, int col) const {
    const int in = backward ? col : row, out = backward ? row : col;
    return in < inputs && out < neurons ? weight[static_cast<int64_t>(in) * neurons + out] : 0.0f;
  }
};

// The largest magnitude so far in a lane or warp, and zero: NaN after NaN or infinity. Then a matrix' scale
// is NaN, and so are all its products.
struct Largest {
  float size, zero;

  __device__ void meet(float x) { size = fmaxf(size, fabsf(x)), zero += 0.0f * x; }
  __device__ void meet(const Largest& other) { size = fmaxf(size, other.size), zero += other.zero; }
  // Combines lanes that differ by each power of two from `step` on.
  __device__ void meet_lanes(int step) {
    for (int d = kWarp / 2; d >= step; d /= 2) {
      size = fmaxf(size, __shfl_xor_sync(kAllLanes, size, d));
      zero += __shfl_xor_sync(kAllLanes, zero, d);
    }
  }
  __device__ float inverse_scale() const { return inverse_power(scale_for(size)) + zero; }
};

constexpr int kPackThreads = 256, kPackWarps = kPackThreads / kWarp;

// A block packs the vectors of hidden layer n, or those of the output layer.
__device__ inline void pack_vectors(const PackArgs& p, int n) {
  const LayerWeights& own = p.layers[n];
  const auto put = [&](int64_t at, const float* from, float missing, int count, int padded) {
    for (int k = threadIdx.x; k < padded; k += kPackThreads)
      p.packed[at + k] = k >= count ? 0.0f : from ? from[k] : missing;
  };
  if (n < p.net.layers) {
    put(p.to.bias[n], own.bias, 0, p.net.neurons[n], p.padded[n]);
    put(p.to.timestep[n], own.timestep, 1, p.net.neurons[n], p.padded[n]);
    return;
  }
  put(p.to.out_weight, own.weight, 0, p.net.neurons[n - 1], p.padded[n - 1]);
  put(p.to.out_bias, own.bias, 0, 1, 4);
  for (int k = threadIdx.x; k < p.alone.tiles; k += kPackThreads) p.alone.tile_type[k] = 0;
  if (p.alone.scale && threadIdx.x == 0) *p.alone.scale = 1;
}

// A block finds 1 / scale of eight columns of a matrix, and returns that of column threadIdx.x % kTileCols.
__device__ inline float pack_column_scales(const LayerMatrix& matrix, const PackedMatrix& to, int tile,
                                           float* packed) {
  __shared__ Largest of_warp[kPackWarps][kTileCols];
  const int own = threadIdx.x % kTileCols, col = kTileCols * tile + own, warp = threadIdx.x / kWarp;
  Largest largest{0, 0};
#pragma unroll 4
  for (int k = threadIdx.x / kTileCols; k < to.steps * kStepDepth; k += kPackThreads / kTileCols)
    largest.meet(matrix.at(k, col));
  largest.meet_lanes(kTileCols);
  if (lane_index() < kTileCols) of_warp[warp][own] = largest;
  __syncthreads();
  largest = {0, 0};
  for (int k = 0; k < kPackWarps; ++k) largest.meet(of_warp[k][own]);
  if (threadIdx.x < kTileCols) packed[to.columns_at() + col] = largest.inverse_scale();
  return largest.inverse_scale();
}

// For every matrix, forward and backward, a block per eight columns: their scales and fragments, for a lane
// the four rows 2 (lane % 4) + {0, 1, 8, 9} of column lane / 4.
template <int Parts>
__global__ void __launch_bounds__(kPackThreads) fragments_kernel(const __grid_constant__ PackArgs p) {
  int tile = static_cast<int>(blockIdx.x) - p.vectors, m = 0;
  if (tile < 0) return pack_vectors(p, blockIdx.x);
  const auto place = [&]() -> const PackedMatrix& {
    return m % 2 ? p.to.backward[m / 2] : p.to.forward[m / 2];
  };
  for (; tile >= place().tiles; ++m) tile -= place().tiles;
  const PackedMatrix& to = place();
  const LayerMatrix matrix(p, m / 2, m % 2);
  const float inverse = pack_column_scales(matrix, to, tile, p.packed);
  const int lane = lane_index(), col = kTileCols * tile + lane / 4;
  const float scale = inverse_power(__shfl_sync(kAllLanes, inverse, lane / 4));
  for (int step = threadIdx.x / kWarp; step < to.steps; step += kPackWarps) {
    const int row = kStepDepth * step + 2 * (lane % 4);
    Fragment<Parts> out;
    for (int half = 0; half < 2; ++half) {
      const int r = row + 8 * half;
      uint32_t parts[Parts];
      split(scale * matrix.at(r, col), scale * matrix.at(r + 1, col), parts);
      for (int k = 0; k < Parts; ++k) out.part[k][half] = parts[k];
    }
    const int64_t at = (static_cast<int64_t>(step) * to.tiles + tile) * kWarp + lane;
    reinterpret_cast<Fragment<Parts>*>(p.packed + to.at)[at] = out;
  }
}

// The largest weights of each layer, in kLargestParts parts.
static __global__ void __launch_bounds__(kPackThreads) largest_kernel(const __grid_constant__ PackArgs p) {
  const int block = static_cast<int>(blockIdx.x) - p.vectors;
  if (block < 0) return pack_vectors(p, blockIdx.x);
  __shared__ Largest of_warp[kPackWarps];
  const LayerMatrix matrix(p, block / kLargestParts, false);
  const int64_t count = static_cast<int64_t>(matrix.inputs) * matrix.neurons;
  Largest largest{0, 0};
#pragma unroll 4
  for (int64_t k = block % kLargestParts * kPackThreads + threadIdx.x; k < count;
       k += kLargestParts * kPackThreads)
    largest.meet(matrix.weight[k]);
  largest.meet_lanes(1);
  if (lane_index() == 0) of_warp[threadIdx.x / kWarp] = largest;
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int k = 1; k < kPackWarps; ++k) largest.meet(of_warp[k]);
  reinterpret_cast<Largest*>(p.packed + p.to.largest)[block] = largest;
}

// The units of a kind of chain (in the order of `NetChain`), a block each: columns as the rows that
// gpu_shape.h shows; and 1 / scale of each product. After `largest_kernel`.
template <int Parts>
__global__ void __launch_bounds__(kPackThreads)
    units_kernel(const __grid_constant__ PackArgs p, ChainKind kind, int64_t at) {
  constexpr int unit_rows = unit_depth(Parts);
  static_assert(kLargestParts == kWarp);
  const NetChain chain{p.net, Parts, kind};
  int block = blockIdx.x, m = 0;
  for (; block >= chain.units(m); ++m) block -= chain.units(m);
  const LayerMatrix matrix(p, chain.layer(m), chain.is_backward(m));
  const int depth = chain.depth(m), columns = chain.columns(m), blocks = chain.blocks(m);
  Largest largest = reinterpret_cast<const Largest*>(
      p.packed + p.to.largest)[chain.layer(m) * kLargestParts + lane_index()];
  largest.meet_lanes(1);
  const float inverse = largest.inverse_scale(), scale = inverse_power(inverse);
  if (block == 0 && threadIdx.x == 0) p.packed[p.to.unit_scales + m] = inverse;
  const int width = chain.width(m), tile = block / (width * blocks);
  const int own = min(width, chain.chunks(m) - tile * width);
  const int in_tile = block % (width * blocks), pair = in_tile / (2 * own);
  const int in_pair = in_tile % (2 * own), first_row = (2 * pair + in_pair % 2) * unit_rows;
  const int first_col = (tile * width + in_pair / 2) * kind.unit_cols;
  char* const unit = reinterpret_cast<char*>(p.packed + at) + int64_t{blockIdx.x} * kind.unit_cols * kWideRow;
  for (int k = threadIdx.x; k < kind.unit_cols * unit_rows / 2; k += kPackThreads) {
    const int col = k / (unit_rows / 2), row = 2 * (k % (unit_rows / 2));
    float x[2];
    for (int c = 0; c < 2; ++c) {
      const int r = first_row + row + c;
      x[c] = r < depth && first_col + col < columns ? scale * matrix.at(r, first_col + col) : 0.0f;
    }
    uint32_t parts[Parts];
    split(x[0], x[1], parts);
    for (int part = 0; part < Parts; ++part)
      *reinterpret_cast<uint32_t*>(unit + wide_place(col, row, part)) = parts[part];
  }
}

}  // namespace mdops
