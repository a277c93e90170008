// Packing a net for a GPU, on the GPU.
#pragma once

#include "gemm/gpu_parts.h"

namespace mdops {

// Layer n of a net as the matrix of its forward or its backward product; zero outside of the weights.
struct LayerMatrix {
  const float* weight;  // (inputs, neurons)
  int inputs, neurons;
  bool backward;

  __device__ float at(int row, int col) const {
    const int in = backward ? col : row, out = backward ? row : col;
    return in < inputs && out < neurons ? weight[static_cast<int64_t>(in) * neurons + out] : 0.0f;
  }
};

// The largest size that a lane or a warp has met, and zero: not a number once a weight was none, or infinite.
// With it a matrix' scale is none, and nothing that is multiplied with it is a number.
struct LargestWeight {
  float size, zero;

  __device__ void meet(float weight) { size = fmaxf(size, fabsf(weight)), zero += 0.0f * weight; }
  __device__ void meet_all_lanes() {
    for (int d = 16; d > 0; d /= 2) {
      size = fmaxf(size, __shfl_xor_sync(kAllLanes, size, d));
      zero += __shfl_xor_sync(kAllLanes, zero, d);
    }
  }
  __device__ float inverse_scale() const { return inverse_power(scale_for(size)) + zero; }
};

// 1 / scale of each column: a warp a column.
static __global__ void column_scales_kernel(LayerMatrix matrix, PackedMatrix to, float* packed) {
  const int col = blockIdx.x;
  LargestWeight largest{0, 0};
  for (int k = threadIdx.x; k < to.steps * kStepDepth; k += kWarp) largest.meet(matrix.at(k, col));
  largest.meet_all_lanes();
  if (threadIdx.x == 0) packed[to.columns_at() + col] = largest.inverse_scale();
}

// The fragments: a lane's four rows 2 (lane % 4) + {0, 1, 8, 9} of column lane / 4.
template <int Parts>
__global__ void fragments_kernel(LayerMatrix matrix, PackedMatrix to, float* packed) {
  const int lane = threadIdx.x, step = blockIdx.x / to.tiles, tile = blockIdx.x % to.tiles;
  const int row = kStepDepth * step + 2 * (lane % 4), col = kTileCols * tile + lane / 4;
  const float scale = inverse_power(packed[to.columns_at() + col]);
  Fragment<Parts> out;
  for (int half = 0; half < 2; ++half) {
    const int r = row + 8 * half;
    uint32_t parts[Parts];
    split(scale * matrix.at(r, col), scale * matrix.at(r + 1, col), parts);
    for (int k = 0; k < Parts; ++k) out.part[k][half] = parts[k];
  }
  reinterpret_cast<Fragment<Parts>*>(packed + to.at)[static_cast<int64_t>(blockIdx.x) * kWarp + lane] = out;
}

// 1 / scale of a whole matrix, by one block.
static __global__ void __launch_bounds__(1024)
    unit_scale_kernel(LayerMatrix matrix, int depth, int columns, float* inverse) {
  __shared__ LargestWeight of_warp[kWarp];
  LargestWeight largest{0, 0};
  for (int k = threadIdx.x; k < depth * columns; k += blockDim.x)
    largest.meet(matrix.at(k / columns, k % columns));
  largest.meet_all_lanes();
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = largest;
  __syncthreads();
  if (threadIdx.x >= kWarp) return;
  largest = of_warp[threadIdx.x];
  largest.meet_all_lanes();
  if (threadIdx.x == 0) *inverse = largest.inverse_scale();
}

// The units of one product of the chain (`NetChain` tells their order), a block each: columns as the rows
// that gpu_shape.h draws.
template <int Parts>
__global__ void units_kernel(LayerMatrix matrix, int depth, int columns, int unit_cols, int width,
                             const float* inverse, char* units) {
  constexpr int unit_rows = unit_depth(Parts);
  const int blocks = round_up(depth, 2 * unit_rows) / unit_rows, tile = blockIdx.x / (width * blocks);
  const int own = min(width, (columns + unit_cols - 1) / unit_cols - tile * width);
  const int in_tile = blockIdx.x % (width * blocks), pair = in_tile / (2 * own);
  const int in_pair = in_tile % (2 * own), first_row = (2 * pair + in_pair % 2) * unit_rows;
  const int first_col = (tile * width + in_pair / 2) * unit_cols;
  const float scale = inverse_power(*inverse);
  char* const unit = units + static_cast<int64_t>(blockIdx.x) * unit_cols * kWideRow;
  for (int k = threadIdx.x; k < unit_cols * unit_rows / 2; k += blockDim.x) {
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
