// Rows' own messages on a GPU. For rows of 32 float32 numbers a warp takes 16 rows by the tensor cores, to
// float32's accuracy (common/gpu_tf32.h): a lane has eight adjacent numbers of two rows, the same ones for
// loads, for the depth of a product's rows, and for the columns of its results. Otherwise a warp has a row.
#pragma once

#include <algorithm>
#include <type_traits>

#include "common/gpu.h"
#include "common/gpu_tf32.h"
#include "common/gpu_unroll.h"
#include "common/gpu_warp.h"
#include "common/vector.h"
#include "gemm/gpu_memory.h"
#include "own_message/own_message.h"

namespace mdops::gpu_own_message {

constexpr int kThreads = 256, kWarps = kThreads / kWarp, kWidth = 32, kSteps = kWidth / 8;

// A matrix in two parts, in the layout of products: depth 8 t + 2 step and the next, column 8 (g / 2) + 2
// tile + g % 2.
MDOPS_D void place_weights(const float* from, int of_depth, int of_column, uint4* to) {
  const int lane = lane_index(), g = lane / 4, t = lane % 4;
  for (int at = threadIdx.x; at < kSteps * kSteps * kWarp; at += kThreads) {
    const int tile = at / kWarp % kSteps, step = at / kWarp / kSteps;
    const float* const one =
        from + (8 * t + 2 * step) * of_depth + (g / 2 * 8 + 2 * tile + g % 2) * of_column;
    split_to(to[at].x, to[at].z, one[0]), split_to(to[at].y, to[at].w, one[of_depth]);
  }
}

// Eight numbers of each of two rows: [row][number].
using Numbers = float[2][kWidth / 4];

// z = z + A W
MDOPS_D void multiply(Numbers& z, const Numbers& a, const uint4* weights) {
  float large[kSteps][4] = {}, small[kSteps][4] = {};
  unrolled<kSteps>([&](int step) {
    uint32_t high[4], low[4];
    unrolled<4>([&](int k) { split_to(high[k], low[k], a[k % 2][2 * step + k / 2]); });
    unrolled<kSteps>([&](int tile) {
      const uint4 b = weights[(step * kSteps + tile) * kWarp + lane_index()];
      multiply_8(small[tile], low, b.x, b.y);
      multiply_8(small[tile], high, b.z, b.w);
      multiply_8(large[tile], high, b.x, b.y);
    });
  });
  unrolled<kSteps, 4>(
      [&](int tile, int k) { z[k / 2][2 * tile + k % 2] += large[tile][k] + small[tile][k]; });
}

MDOPS_D void read_eight(float (&to)[8], const float* from, bool there) {
  unrolled<2>([&](int half) {
    Vector<float, 4> four;
    if (there) four = Vector<float, 4>(from + 4 * half);
    unrolled<4>([&](int k) { to[4 * half + k] = four[k]; });
  });
}

template <Activation kind, bool kBack>
__global__ void __launch_bounds__(kThreads) tensor_kernel(OwnMessageArgs<float> args) {
  uint4* const weights = reinterpret_cast<uint4*>(net_memory());
  uint4* const transposed = weights + kSteps * kSteps * kWarp;
  place_weights(args.weight, kWidth, 1, weights);
  if constexpr (kBack) place_weights(args.weight, 1, kWidth, transposed);
  __syncthreads();
  const int g = lane_index() / 4, column = lane_index() % 4 * 8;
  float bias[8], factor[8];
  read_eight(bias, args.bias + column, true), read_eight(factor, args.factor + column, true);
  const int64_t tiles = (args.rows + 15) / 16;
  for (int64_t tile = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; tile < tiles;
       tile += static_cast<int64_t>(gridDim.x) * kWarps) {
    Numbers x, z, grad;
    unrolled<2>([&](int r) {
      const int64_t row = 16 * tile + g + 8 * r;
      read_eight(x[r], args.x + row * kWidth + column, row < args.rows);
      if constexpr (kBack) read_eight(grad[r], args.grad + row * kWidth + column, row < args.rows);
      unrolled<8>([&](int k) { z[r][k] = bias[k]; });
    });
    multiply(z, x, weights);
    unrolled<2, 8>([&](int r, int k) {
      float y, slope;
      activate<kind>(z[r][k], args.threshold, &y, &slope);
      if constexpr (kBack)
        z[r][k] = grad[r][k] * factor[k] * slope, grad[r][k] *= args.keep;
      else
        z[r][k] = args.keep * x[r][k] + factor[k] * y;
    });
    if constexpr (kBack) multiply(grad, z, transposed);
    const Numbers& found = kBack ? grad : z;
    unrolled<2>([&](int r) {
      const int64_t row = 16 * tile + g + 8 * r;
      if (row >= args.rows) return;
      unrolled<2>([&](int half) {
        Vector<float, 4> four;
        unrolled<4>([&](int k) { four[k] = found[r][4 * half + k]; });
        four.store(args.out + row * kWidth + column + 4 * half);
      });
    });
  }
}

// A warp a row; backward its numbers stand in the warp's part of shared memory.
template <class T, Activation kind, bool kBack>
__global__ void __launch_bounds__(kThreads) plain_kernel(OwnMessageArgs<T> args) {
  T* const by_z = reinterpret_cast<T*>(net_memory()) + threadIdx.x / kWarp * args.width;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= args.rows) return;
  T* const to = kBack ? by_z : args.out + row * args.width;
  for (int64_t c = lane_index(); c < args.width; c += kWarp)
    to[c] = kBack ? args.template by_product<kind>(row, c) : args.template value<kind>(row, c);
  if constexpr (!kBack) return;
  __syncwarp();
  for (int64_t k = lane_index(); k < args.width; k += kWarp)
    args.out[row * args.width + k] = args.gradient(row, k, by_z);
}

template <Activation kind, bool kBack, class T>
void launch(const Gpu& gpu, const OwnMessageArgs<T>& args) {
  if constexpr (std::is_same_v<T, float>)
    if (gpu.limits().capability >= 80 && args.width == kWidth) {
      const int64_t blocks =
          std::min(blocks_for(args.rows, 16 * kWarps), 4 * int64_t{gpu.limits().multiprocessors});
      return gpu.launch(tensor_kernel<kind, kBack>, blocks, kThreads,
                        (kBack ? 2 : 1) * kSteps * kSteps * kWarp * int64_t{sizeof(uint4)}, args);
    }
  gpu.launch(plain_kernel<T, kind, kBack>, blocks_for(args.rows, kWarps), kThreads,
             kBack ? kWarps * args.width * static_cast<int64_t>(sizeof(T)) : 0, args);
}

template <class T>
void run_own_message(const Gpu& gpu, const OwnMessageArgs<T>& args) {
  with_activation(args.activation, [&]<Activation kind>() {
    args.grad ? launch<kind, true>(gpu, args) : launch<kind, false>(gpu, args);
  });
}

}  // namespace mdops::gpu_own_message

namespace mdops {
using gpu_own_message::run_own_message;
}
