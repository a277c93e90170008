// Products at points in float32 by the tensor cores: three products of float16's two parts
// (gemm/gpu_parts.h), to float32's accuracy.
//
// A warp has 16 channels of an atom. Its coefficients are rows of products in registers; the matrices are in
// shared memory as products read them. For each 16 points, products give the values of both functions, and
// the product of these goes straight into the next one, which adds it to the results.
//
// A channel's coefficients are scaled by a power of two, and so is each matrix. This bounds the value at a
// point, and the product of two: so its scale is known beforehand.
#pragma once

#include <algorithm>

#include "common/gpu.h"
#include "common/gpu_mma.h"
#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "gemm/gpu_memory.h"
#include "gemm/gpu_parts.h"
#include "grid_product/grid_product.h"

namespace mdops::gpu_grid {

constexpr int kMostSixteens = 4, kTensorRows = 16, kMostWarps = 12;

// As many threads as registers allow.
MDOPS_HD constexpr int tensor_threads(int sixteens) {
  return sixteens > 3 ? 256 : 384;
}

// A matrix in shared memory: for 16 points and 16 columns, two pieces for 32 lanes, each of 8 x 16 numbers.
struct TensorGrid {
  int sixteens;  // of columns
  int64_t points;

  MDOPS_HD int64_t pieces() const { return (points + 15) / 16 * 2 * sixteens; }
  MDOPS_HD int64_t bytes() const { return 3 * (pieces() * kWarp + 1) * 16; }
};

// A warp's channels as rows of products.
template <int kSixteens>
struct GridRows {
  uint32_t high[kSixteens][4], low[kSixteens][4];
  float unscale[2];  // for rows l / 4 and l / 4 + 8

  // `from`: the atom's coefficients of the lane's first channel; `has`: which of both channels exist.
  MDOPS_D GridRows(const float* from, int columns, int channels, const bool (&has)[2]) {
    const int t = lane_index() % 4;
    from += 2 * t * channels;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float x[kSixteens][4], largest = 0;
      unrolled<kSixteens, 4>([&](int s, int k) {
        const int column = 16 * s + k % 2 + k / 2 * 8;
        x[s][k] = has[h] && 2 * t + column < columns ? __ldg(from + column * channels + 8 * h) : 0.0f;
        largest = fmaxf(largest, fabsf(x[s][k]));
      });
      const float scale = scale_for(quad_largest(largest));
      unscale[h] = inverse_power(scale);
      unrolled<kSixteens, 2>([&](int s, int k) {
        uint32_t parts[2];
        split(scale * x[s][2 * k], scale * x[s][2 * k + 1], parts);
        high[s][h + 2 * k] = parts[0], low[s][h + 2 * k] = parts[1];
      });
    }
  }

  // The values at eight points, by a matrix's `pieces` for them.
  MDOPS_D void values(const uint4* pieces, float (&found)[4]) const {
    float small[4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) found[k] = 0;
#pragma unroll
    for (int s = 0; s < kSixteens; ++s) {
      const uint4 b = pieces[s * kWarp + lane_index()];
      multiply_16<false>(small, low[s], b.x, b.y);
      multiply_16<false>(small, high[s], b.z, b.w);
      multiply_16<false>(found, high[s], b.x, b.y);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) found[k] += small[k];
  }
};

// Copies a matrix to shared memory as products read it: the depth is the coefficients, or the points for the
// last matrix, which is `Transposed`. Its inverse scale follows.
template <bool Transposed>
MDOPS_D void place_matrix(const float* from, int64_t columns, const TensorGrid& grid, uint4* to) {
  __shared__ float of_warps[kMostWarps];
  float largest = 0;
#pragma unroll 8
  for (int64_t k = threadIdx.x; k < grid.points * columns; k += blockDim.x)
    largest = fmaxf(largest, fabsf(__ldg(from + k)));
  largest = warp_largest(largest);
  __syncthreads();
  if (lane_index() == 0) of_warps[threadIdx.x / kWarp] = largest;
  __syncthreads();
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) largest = fmaxf(largest, of_warps[w]);
  const float scale = scale_for(largest);
  const int64_t places = grid.pieces() * kWarp;
  if (threadIdx.x == 0) to[places].x = __float_as_uint(inverse_power(scale));
#pragma unroll 4
  for (int64_t k = threadIdx.x; k < places; k += blockDim.x) {
    const int g = static_cast<int>(k % kWarp) / 4, t = static_cast<int>(k % 4);
    const int piece = static_cast<int>(k / kWarp), across = 2 * grid.sixteens;
    // Eight points and 16 columns, or 16 points and eight columns.
    const int line = 8 * (Transposed ? piece % across : piece / grid.sixteens) + g;
    const int deep = 16 * (Transposed ? piece / across : piece % grid.sixteens) + 2 * t;
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int depth = deep + i % 2 + i / 2 * 8;
      const int point = Transposed ? depth : line, column = Transposed ? line : depth;
      x[i] = point < grid.points && column < columns ? scale * __ldg(from + point * columns + column) : 0.0f;
    }
    uint32_t first[2], second[2];
    split(x[0], x[1], first), split(x[2], x[3], second);
    to[k] = {first[0], second[0], first[1], second[1]};
  }
}

template <int kSixteens>
__global__ void __launch_bounds__(tensor_threads(kSixteens), 1)
    tensor_kernel(const __grid_constant__ GridArgs<float> args, int tiles) {
  const TensorGrid grid{kSixteens, args.points};
  uint4* const a = reinterpret_cast<uint4*>(net_memory());
  uint4 *const out = a + grid.pieces() * kWarp + 1, *const other = out + grid.pieces() * kWarp + 1;
  place_matrix<false>(args.a, args.first, grid, a);
  place_matrix<true>(args.out, args.results, grid, out);
  const bool same = args.a == args.b;
  const uint4* const b = same ? a : other;
  if (!same) place_matrix<false>(args.b, args.second, grid, other);
  __syncthreads();
  const auto unscale = [&](const uint4* of) { return __uint_as_float(of[grid.pieces() * kWarp].x); };
  // Coefficients and matrices are below 2^(kLargest + 1): so values are below 2^kBound, and their products
  // are scaled below 2^15.
  constexpr int kBound = 2 * (kLargest + 1) + (kSixteens > 2 ? 6 : kSixteens > 1 ? 5 : 4);
  constexpr int kShift = 2 * kBound - 15;
  const float smaller = __int_as_float((127 - kShift) << 23), larger = __int_as_float((127 + kShift) << 23);
  const int g = lane_index() / 4, t = lane_index() % 4, sixteens = static_cast<int>(grid.points + 15) / 16;
  const int across = static_cast<int>(args.channels + kTensorRows - 1) / kTensorRows;
  const int warps = static_cast<int>(gridDim.x) * (tensor_threads(kSixteens) / kWarp);
  // Consecutive tiles go to different multiprocessors: so few tiles use all.
  for (int tile = static_cast<int>(blockIdx.x + gridDim.x * (threadIdx.x / kWarp)); tile < tiles;
       tile += warps) {
    const int64_t n = tile / across;
    const int c = tile % across * kTensorRows + g;
    const bool has[2] = {c < args.channels, c + 8 < args.channels};
    const int channels = static_cast<int>(args.channels);
    const GridRows<kSixteens> u(args.u + n * args.first * channels + c, static_cast<int>(args.first),
                                channels, has);
    const GridRows<kSixteens> v(args.v + n * args.second * channels + c, static_cast<int>(args.second),
                                channels, has);
    float y[2 * kSixteens][4] = {};
#pragma unroll 1
    for (int s = 0; s < sixteens; ++s) {
      uint32_t high[4], low[4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int piece = (2 * s + j) * kSixteens * kWarp;
        float of_u[4], of_v[4];
        u.values(a + piece, of_u), v.values(b + piece, of_v);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          uint32_t parts[2];
          split(smaller * of_u[2 * h] * of_v[2 * h], smaller * of_u[2 * h + 1] * of_v[2 * h + 1], parts);
          high[2 * j + h] = parts[0], low[2 * j + h] = parts[1];
        }
      }
#pragma unroll
      for (int j = 0; j < 2 * kSixteens; ++j) {
        const uint4 piece = out[(s * 2 * kSixteens + j) * kWarp + lane_index()];
        float sum[4] = {};
        multiply_16<false>(sum, low, piece.x, piece.y);
        multiply_16<false>(sum, high, piece.z, piece.w);
        multiply_16<false>(sum, high, piece.x, piece.y);
#pragma unroll
        for (int k = 0; k < 4; ++k) y[j][k] += sum[k];
      }
    }
    float* const to = args.y + n * args.results * args.channels + c;
    const float of_first = unscale(a) * unscale(out) * larger, of_second = unscale(b);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float one = u.unscale[h] * of_first, other = v.unscale[h] * of_second;
#pragma unroll
      for (int j = 0; j < 2 * kSixteens; ++j)
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int d = 8 * j + 2 * t + k;
          if (has[h] && d < args.results) to[d * args.channels + 8 * h] = y[j][2 * h + k] * one * other;
        }
    }
  }
}

inline TensorGrid tensor_grid(const GridArgs<float>& args) {
  const int64_t columns = std::max({args.first, args.second, args.results});
  return {static_cast<int>((columns + 15) / 16), args.points};
}

inline bool by_tensor_cores(const Gpu& gpu, const GridArgs<float>& args) {
  const TensorGrid grid = tensor_grid(args);
  return gpu.limits().capability >= 80 && grid.sixteens <= kMostSixteens &&
         grid.bytes() <= gpu.limits().shared_bytes - static_cast<int64_t>(kMostWarps * sizeof(float));
}

inline void run_tensor(const Gpu& gpu, const GridArgs<float>& args) {
  const TensorGrid grid = tensor_grid(args);
  const int64_t tiles = args.atoms * blocks_for(args.channels, kTensorRows);
  const int64_t blocks = std::min<int64_t>(tiles, gpu.limits().multiprocessors);
  const auto launch = [&](auto kernel) {
    gpu.launch(kernel, blocks, tensor_threads(grid.sixteens), grid.bytes(), args, tiles);
  };
  switch (grid.sixteens) {
    case 1:
      return launch(tensor_kernel<1>);
    case 2:
      return launch(tensor_kernel<2>);
    case 3:
      return launch(tensor_kernel<3>);
    default:
      return launch(tensor_kernel<4>);
  }
}

}  // namespace mdops::gpu_grid
