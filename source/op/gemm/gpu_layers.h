// The net with a kernel per product, including the steps up to the next product (gpu_steps.h). A tile of rows
// belongs to one net.
#pragma once

#include "common/early.h"
#include "common/profiler.h"
#include "gemm/gpu_memory.h"
#include "gemm/gpu_steps.h"
#include "gemm/gpu_tile.h"

namespace mdops {

// The tile's rows of one block of columns: a group of lanes per row, four columns per lane, a few rows at
// once, since their loads take long.
template <class T, LayerStep Step>
MDOPS_D void finish_tile(const LayerArgs& p, const float* net, float scale, int64_t first_row, int first_col,
                         int block, int blocks, const float* c, const float* scales, double* outputs) {
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
          part[n].template load<Step>(p, net, scale, first_row + first + n * groups, first_col + col,
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
          largest = warp_largest<lanes>(largest);
          if constexpr (Step == LayerStep::last) output = warp_sum<lanes>(output);
          if (threadIdx.x % lanes != 0) continue;
          // Not negative: ordered like its bits.
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

// Of a block, besides T::kShared.
template <class T>
constexpr int kLayerBytes = static_cast<int>(T::kRows * (sizeof(float) + sizeof(double)));

template <class T, LayerStep Step>
__global__ void __launch_bounds__(T::kThreads) layer_kernel(LayerArgs p) {
  __shared__ float scales[T::kRows];
  __shared__ double outputs[Step == LayerStep::last ? T::kRows : 1];
  MDOPS_STAGE_IF(Step == LayerStep::backward || Step == LayerStep::input, net_down, net_up);
  const int blocks = (p.cols + T::kCols - 1) / T::kCols, block = blockIdx.x % blocks;
  const int64_t tile = blockIdx.x / blocks, first_row = tile * T::kRows;
  const int type = p.tile_type[tile];
  if (type < 0) return follow_kernels();
  // Waits for the kernel that wrote this one's rows; the types are from an earlier one.
  const auto begin_rows = [&] {
    follow_kernels();
    for (int r = threadIdx.x; r < T::kRows; r += T::kThreads)
      scales[r] = scale_for(p.in_largest[first_row + r]);
    __syncthreads();
  };
  const float* net = p.nets + type * p.net_size;
  const Operands in{p.in + first_row * p.in_stride, p.in_stride, net + p.matrix.at, p.matrix.steps,
                    p.matrix.tiles};
  const float* c = multiply_tile<T>(in, block * T::kTiles, scales, net_memory(), begin_rows);
  finish_tile<T, Step>(p, net, static_cast<float>(p.scale[type]), first_row, block * T::kCols, block, blocks,
                       c, scales, outputs);
}

}  // namespace mdops
