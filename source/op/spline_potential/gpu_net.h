// The fitting net on a GPU: one kernel a matrix product, with what follows it up to the next product. A tile
// of rows holds atoms of one type. The backward kernels write over what the forward ones left: the gradient
// of a layer's values over the values, that before the activation over the slopes.
#pragma once

#include "spline_potential/gpu_gemm.h"

namespace mdops {

enum class LayerStep { forward, last, backward, features };

struct LayerArgs {
  const int32_t* tile_type;  // -1: no atoms
  const float* nets;
  int64_t net_size;
  PackedMatrix matrix;
  const float *in, *in_largest;  // rows of A, and the bound of each one's numbers
  int64_t in_stride;
  // What comes out: rows of `cols` numbers, the first `neurons` of them real.
  float *value, *slope, *largest;
  int64_t stride;
  int cols, neurons;
  // A residual layer's input (forward) or the gradient of its values (backward), of `residual_cols`
  // columns; null where there is none. The last layer's gradient is scale * out_weight.
  const float* residual;
  int64_t residual_stride;
  int residual_cols;
  bool residual_is_out_weight, keep_gradient;
  int64_t bias, timestep, out_weight;
  const double* scale;
  double* energy;  // [row][column block]: parts of the net's output
  Activation activation;
  float threshold;
};

// f and f' of four numbers at once.
__device__ __forceinline__ void activate_four(const LayerArgs& p, const float* x, float* value,
                                              float* slope) {
  with_activation(p.activation, [&]<Activation kind>() {
#pragma unroll
    for (int k = 0; k < 4; ++k) activate<kind>(x[k], p.threshold, value + k, slope + k);
  });
}

// What a residual layer twice as wide as its input, or as wide, adds to column c.
__device__ __forceinline__ float residual_input(const LayerArgs& p, int64_t row, int c) {
  return p.residual[row * p.residual_stride + (c >= p.residual_cols ? c - p.residual_cols : c)];
}

// The gradient that comes round a residual layer to its input's column c.
__device__ __forceinline__ float residual_gradient(const LayerArgs& p, const float* net, float scale,
                                                   int64_t row, int c) {
  float sum = 0;
  for (int k = c; k < p.residual_cols; k += p.neurons)
    sum += p.residual_is_out_weight ? scale * net[p.out_weight + k] : p.residual[row * p.residual_stride + k];
  return sum;
}

// Four numbers of the product become what the step writes; x becomes what the next product takes.
template <LayerStep Step>
__device__ __forceinline__ void finish_four(const LayerArgs& p, const float* net, float scale, int64_t row,
                                            int col, float* x, float* value, float* slope, double* energy) {
  const bool residual = p.residual || p.residual_is_out_weight;
  if constexpr (Step == LayerStep::backward) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      value[k] = x[k];
      if (residual && col + k < p.neurons) value[k] += residual_gradient(p, net, scale, row, col + k);
      x[k] = slope[k] *= value[k];
    }
  } else {
    const float4 bias = *reinterpret_cast<const float4*>(net + p.bias + col);
    const float4 time = *reinterpret_cast<const float4*>(net + p.timestep + col);
    const float step[4] = {time.x, time.y, time.z, time.w};
    x[0] += bias.x, x[1] += bias.y, x[2] += bias.z, x[3] += bias.w;
    activate_four(p, x, value, slope);
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // the timesteps of columns that are not real are zero
      value[k] *= step[k], slope[k] *= step[k];
      if (residual && col + k < p.neurons) value[k] += residual_input(p, row, col + k);
      x[k] = value[k];
    }
    if constexpr (Step == LayerStep::last) {
      const float4 w = *reinterpret_cast<const float4*>(net + p.out_weight + col);
      const float out[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        *energy += static_cast<double>(value[k]) * out[k];
        x[k] = slope[k] *= scale * out[k];
      }
    }
  }
}

__device__ __forceinline__ float warp_max(float x) {
  for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, d));
  return x;
}

__device__ __forceinline__ double warp_sum(double x) {
  for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(kAllLanes, x, d);
  return x;
}

// The tile's rows of one block of columns, a warp a row.
template <class T, LayerStep Step>
__device__ __forceinline__ void finish_tile(const LayerArgs& p, const float* net, float scale,
                                            int64_t first_row, int first_col, int block, int blocks,
                                            const float* c, const float* scales) {
  const int columns = min(T::kCols, p.cols - first_col);
  const float* inverse = net + p.matrix.columns_at() + first_col;
  for (int r = threadIdx.x / kWarp; r < T::kRows; r += T::kWarps) {
    const int64_t row = first_row + r, at = row * p.stride + first_col;
    const float unscale = inverse_power(scales[r]);
    float largest = 0;
    double energy = 0;
    for (int col = 4 * lane_index(); col < columns; col += 4 * kWarp) {
      const float4 sum = tile_sum<T>(c, r, col), by = *reinterpret_cast<const float4*>(inverse + col);
      float x[4] = {sum.x * (by.x * unscale), sum.y * (by.y * unscale), sum.z * (by.z * unscale),
                    sum.w * (by.w * unscale)};
      if constexpr (Step != LayerStep::features) {
        float value[4], slope[4];
        if constexpr (Step == LayerStep::backward) {
          const float4 s = *reinterpret_cast<const float4*>(p.slope + at + col);
          slope[0] = s.x, slope[1] = s.y, slope[2] = s.z, slope[3] = s.w;
        }
        finish_four<Step>(p, net, scale, row, first_col + col, x, value, slope, &energy);
#pragma unroll
        for (int k = 0; k < 4; ++k) largest = fmaxf(largest, fabsf(x[k]));
        const float4 s = make_float4(slope[0], slope[1], slope[2], slope[3]);
        *reinterpret_cast<float4*>(p.slope + at + col) = s;
        const float4 v = make_float4(value[0], value[1], value[2], value[3]);
        if (Step == LayerStep::forward || p.keep_gradient) *reinterpret_cast<float4*>(p.value + at + col) = v;
      } else {
        *reinterpret_cast<float4*>(p.value + at + col) = make_float4(x[0], x[1], x[2], x[3]);
      }
    }
    if constexpr (Step != LayerStep::features) {
      largest = warp_max(largest);
      if (lane_index() == 0)  // not negative: ordered as its bits are
        atomicMax(reinterpret_cast<unsigned*>(p.largest + row), __float_as_uint(largest));
    }
    if constexpr (Step == LayerStep::last) {
      energy = warp_sum(energy);
      if (lane_index() == 0) p.energy[row * blocks + block] = energy;
    }
  }
}

template <class T, LayerStep Step, int Products>
__global__ void __launch_bounds__(T::kThreads, 1) layer_kernel(LayerArgs p) {
  extern __shared__ __align__(16) char shared[];
  __shared__ float scales[T::kRows];
  const int blocks = (p.cols + T::kCols - 1) / T::kCols, block = blockIdx.x % blocks;
  const int64_t tile = blockIdx.x / blocks, first_row = tile * T::kRows;
  const int type = p.tile_type[tile];
  if (type < 0) return;
  for (int r = threadIdx.x; r < T::kRows; r += T::kThreads)
    scales[r] = scale_for(p.in_largest[first_row + r]);
  __syncthreads();
  const float* net = p.nets + type * p.net_size;
  const Operands in{p.in + first_row * p.in_stride, p.in_stride, net + p.matrix.at, p.matrix.steps,
                    p.matrix.tiles};
  const float* c = multiply_tile<T, Products>(in, block * T::kTiles, scales, shared);
  finish_tile<T, Step>(p, net, static_cast<float>(p.scale[type]), first_row, block * T::kCols, block, blocks,
                       c, scales);
}

}  // namespace mdops
