// The net with a kernel a matrix product, with what follows it up to the next product. A tile
// of rows is of one net. The backward kernels write over what the forward ones left: the gradient
// of a layer's values over the values, that before the activation over the slopes.
#pragma once

#include "common/early.h"
#include "common/profiler.h"
#include "gemm/gpu_layer.h"
#include "gemm/gpu_tile.h"

namespace mdops {

enum class LayerStep { forward, last, backward, input };

struct LayerArgs {
  const int32_t* tile_type;  // -1: no row counts
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
  double* output;  // [row][column block]: parts of the net's output
  Activation activation;
  float threshold;
};

__device__ __forceinline__ void load_four(const float* from, float* x) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

// What a lane needs for its four columns in every row.
struct Columns {
  float inverse[4], bias[4], timestep[4], out_weight[4];

  template <LayerStep Step>
  __device__ __forceinline__ void load(const LayerArgs& p, const float* net, int col) {
    load_four(net + p.matrix.columns_at() + col, inverse);
    if constexpr (Step == LayerStep::forward || Step == LayerStep::last) {
      load_four(net + p.bias + col, bias);
      load_four(net + p.timestep + col, timestep);
    }
    if constexpr (Step == LayerStep::last) load_four(net + p.out_weight + col, out_weight);
  }
};

// What a residual layer, as wide as its input or twice, adds to four columns: its input.
__device__ __forceinline__ void residual_input(const LayerArgs& p, int64_t row, int col, float* x) {
  const float* from = p.residual + row * p.residual_stride;
  if (p.residual_cols % 4 == 0 && col + 4 <= p.neurons) {
    load_four(from + (col >= p.residual_cols ? col - p.residual_cols : col), x);
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int c = col + k;
    x[k] = c < p.neurons ? from[c >= p.residual_cols ? c - p.residual_cols : c] : 0.0f;
  }
}

// The gradient that comes round a residual layer to four columns of its input.
__device__ __forceinline__ void residual_gradient(const LayerArgs& p, const float* net, float scale,
                                                  int64_t row, int col, float* x) {
#pragma unroll
  for (int k = 0; k < 4; ++k) x[k] = 0;
  if (p.residual && p.neurons % 4 == 0) {
    for (int c = col; col < p.neurons && c < p.residual_cols; c += p.neurons) {
      float part[4];
      load_four(p.residual + row * p.residual_stride + c, part);
#pragma unroll
      for (int k = 0; k < 4; ++k) x[k] += part[k];
    }
    return;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (col + k < p.neurons)
      for (int c = col + k; c < p.residual_cols; c += p.neurons)
        x[k] += p.residual ? p.residual[row * p.residual_stride + c] : scale * net[p.out_weight + c];
}

// Four numbers of a row: as they are read, then as the step writes them.
struct RowPart {
  float x[4];      // of the product, then what the next product takes
  float other[4];  // the residual part
  float value[4], slope[4];

  template <class T, LayerStep Step>
  __device__ __forceinline__ void load(const LayerArgs& p, const float* net, float scale, int64_t row,
                                       int col, float4 sum) {
    x[0] = sum.x, x[1] = sum.y, x[2] = sum.z, x[3] = sum.w;
    if constexpr (Step != LayerStep::input) {
#pragma unroll
      for (int k = 0; k < 4; ++k) other[k] = 0;
    }
    if constexpr (Step == LayerStep::backward) {
      load_four(p.slope + row * p.stride + col, slope);
      if (p.residual || p.residual_is_out_weight) residual_gradient(p, net, scale, row, col, other);
    } else if constexpr (Step != LayerStep::input) {
      if (p.residual) residual_input(p, row, col, other);
    }
  }

  // Columns that are not real become zero: their weights, timesteps and slopes are.
  template <LayerStep Step>
  __device__ __forceinline__ void finish(const LayerArgs& p, const Columns& c, float unscale, float scale,
                                         double* output) {
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] *= c.inverse[k] * unscale;
    if constexpr (Step == LayerStep::backward) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        value[k] = x[k] + other[k];
        x[k] = slope[k] = before_activation(value[k], slope[k]);
      }
    } else if constexpr (Step != LayerStep::input) {
      with_activation(p.activation, [&]<Activation kind>() {
#pragma unroll
        for (int k = 0; k < 4; ++k)
          layer_value<kind>(x[k], c.bias[k], c.timestep[k], other[k], p.threshold, value + k, slope + k);
      });
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        x[k] = value[k];
        if constexpr (Step == LayerStep::last)
          x[k] = slope[k] = end_of_net(value[k], slope[k], c.out_weight[k], scale, output);
      }
    }
  }

  template <LayerStep Step>
  __device__ __forceinline__ void store(const LayerArgs& p, int64_t at) const {
    if constexpr (Step == LayerStep::input) {
      store_four(p.value + at, x[0], x[1], x[2], x[3]);
    } else {
      store_four(p.slope + at, slope[0], slope[1], slope[2], slope[3]);
      if (Step == LayerStep::forward || p.keep_gradient)
        store_four(p.value + at, value[0], value[1], value[2], value[3]);
    }
  }

  __device__ __forceinline__ float largest() const {
    return fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
  }
};

// The tile's rows of one block of columns: a group of lanes a row, a lane four columns, a few rows at once,
// since what they read takes long to come.
template <class T, LayerStep Step>
__device__ __forceinline__ void finish_tile(const LayerArgs& p, const float* net, float scale,
                                            int64_t first_row, int first_col, int block, int blocks,
                                            const float* c, const float* scales, double* outputs) {
  constexpr int lanes = T::kCols <= 64 ? 16 : 32, groups = T::kThreads / lanes;
  constexpr int at_once = T::kRows / groups < 4 ? T::kRows / groups : 4;
  static_assert(T::kRows % (groups * at_once) == 0);
  const int columns = min(T::kCols, p.cols - first_col), group = threadIdx.x / lanes;
  for (int from = 0; from < columns; from += 4 * lanes) {
    const int col = from + 4 * (threadIdx.x % lanes);
    const bool mine = col < columns;
    Columns constant;
    if (mine) constant.load<Step>(p, net, first_col + col);
#pragma unroll 1
    for (int first = group; first < T::kRows; first += groups * at_once) {
      RowPart part[at_once];
#pragma unroll
      for (int n = 0; n < at_once; ++n)
        if (mine)
          part[n].template load<T, Step>(p, net, scale, first_row + first + n * groups, first_col + col,
                                         tile_sum<T>(c, first + n * groups, col));
#pragma unroll
      for (int n = 0; n < at_once; ++n) {
        const int r = first + n * groups;
        float largest = 0;
        double output = 0;
        if (mine) {
          part[n].template finish<Step>(p, constant, inverse_power(scales[r]), scale, &output);
          part[n].template store<Step>(p, (first_row + r) * p.stride + first_col + col);
          largest = part[n].largest();
        }
        if constexpr (Step != LayerStep::input) {
#pragma unroll
          for (int d = lanes / 2; d > 0; d /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, d));
          if constexpr (Step == LayerStep::last) {
#pragma unroll
            for (int d = lanes / 2; d > 0; d /= 2) output += __shfl_xor_sync(kAllLanes, output, d);
          }
          if (threadIdx.x % lanes != 0) continue;
          // Not negative: ordered as its bits are.
          atomicMax(reinterpret_cast<unsigned*>(p.largest + first_row + r), __float_as_uint(largest));
          if constexpr (Step == LayerStep::last) {
            outputs[r] = from == 0 ? output : outputs[r] + output;
            p.output[(first_row + r) * blocks + block] = outputs[r];
          }
        }
      }
    }
  }
}

// Of a block, beside T::kShared.
template <class T>
constexpr int kLayerBytes = static_cast<int>(T::kRows * (sizeof(float) + sizeof(double)));

template <class T, LayerStep Step>
__global__ void __launch_bounds__(T::kThreads) layer_kernel(LayerArgs p) {
  extern __shared__ __align__(16) char shared[];
  __shared__ float scales[T::kRows];
  __shared__ double outputs[Step == LayerStep::last ? T::kRows : 1];
  MDOPS_STAGE_IF(Step == LayerStep::backward || Step == LayerStep::input, net_down, net_up);
  const int blocks = (p.cols + T::kCols - 1) / T::kCols, block = blockIdx.x % blocks;
  const int64_t tile = blockIdx.x / blocks, first_row = tile * T::kRows;
  const int type = p.tile_type[tile];
  if (type < 0) return follow_kernels();
  // The kernel that wrote this one's rows comes first; the types are of one before it.
  const auto begin_rows = [&] {
    follow_kernels();
    for (int r = threadIdx.x; r < T::kRows; r += T::kThreads)
      scales[r] = scale_for(p.in_largest[first_row + r]);
    __syncthreads();
  };
  const float* net = p.nets + type * p.net_size;
  const Operands in{p.in + first_row * p.in_stride, p.in_stride, net + p.matrix.at, p.matrix.steps,
                    p.matrix.tiles};
  const float* c = multiply_tile<T>(in, block * T::kTiles, scales, shared, begin_rows);
  finish_tile<T, Step>(p, net, static_cast<float>(p.scale[type]), first_row, block * T::kCols, block, blocks,
                       c, scales, outputs);
}

}  // namespace mdops
