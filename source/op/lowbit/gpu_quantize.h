// Quantisation, packing and unpacking on a GPU.
#pragma once

#include <cuda_fp8.h>

#include "common/gpu.h"
#include "common/gpu_warp.h"
#include "lowbit/lowbit.h"

namespace mdops::gpu_lowbit {

constexpr int kQuantizeThreads = 256;
constexpr int kMostParts = 512;  // pieces of the numbers of one scale

// A matrix and its scales: number (i, j) has scale[i / group * group_step + j * column_step].
struct Matrix {
  const float* x;
  int64_t rows, cols;
  LowBit kind;
  float* scale;
  int64_t groups, group, group_step, column_step;

  __device__ int64_t scale_at(int64_t i, int64_t j) const { return i / group * group_step + j * column_step; }
};

// max|x|, NaN above all, or sum|x|; the order of the terms is fixed.
struct Size {
  LowBit kind;

  __device__ double with(double all, float x) const {
    const double one = fabs(static_cast<double>(x));
    return both(all, one);
  }
  __device__ double both(double a, double b) const {
    if (kind == LowBit::ternary) return a + b;
    return a != a || a > b ? a : b;
  }
  __device__ float scale(double all, int64_t count) const {
    if (kind == LowBit::ternary)
      return scale_or_one(count > 0 ? static_cast<float>(all / static_cast<double>(count)) : 0.0f);
    return scale_or_one(static_cast<float>(all) / most_of(kind));
  }
};

// Reduces over all threads of a block, for all of them.
__device__ inline double of_block(const Size& size, double own) {
  __shared__ double parts[kQuantizeThreads / 32];
  own = join_lanes(own, [&](double a, double b) { return size.both(a, b); });
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
  __syncthreads();
  double all = parts[0];
  for (int w = 1; w < kQuantizeThreads / 32; ++w) all = size.both(all, parts[w]);
  return all;
}

__device__ inline uint8_t value_of(LowBit kind, float x, float scale) {
  if (kind == LowBit::int8 || kind == LowBit::ternary)
    return static_cast<uint8_t>(quantised(x, scale, kind == LowBit::int8 ? 127.0f : 1.0f));
  const float value = x / scale;
  return static_cast<uint8_t>(
      __nv_cvt_float_to_fp8(value, __NV_SATFINITE, kind == LowBit::e4m3 ? __NV_E4M3 : __NV_E5M2));
}

__device__ inline float number_of(LowBit kind, uint8_t value) {
  if (kind == LowBit::int8 || kind == LowBit::ternary) return static_cast<int8_t>(value);
  return __uint_as_float(float32_bits_of_float8(value, mantissa_of(kind)));
}

// A block a row, which has a scale of its own.
static __global__ void __launch_bounds__(kQuantizeThreads) quantize_rows_kernel(Matrix m, uint8_t* values) {
  const Size size{m.kind};
  const int64_t row = blockIdx.x;
  const float* x = m.x + row * m.cols;
  double own = 0;
  for (int64_t j = threadIdx.x; j < m.cols; j += kQuantizeThreads) own = size.with(own, x[j]);
  const float scale = size.scale(of_block(size, own), m.cols);
  if (threadIdx.x == 0) m.scale[row] = scale;
  for (int64_t j = threadIdx.x; j < m.cols; j += kQuantizeThreads)
    values[row * m.cols + j] = value_of(m.kind, x[j], scale);
}

// One scale for all: a block for each piece, then one block for all pieces.
static __global__ void __launch_bounds__(kQuantizeThreads)
    size_of_parts_kernel(Matrix m, int64_t piece, double* parts) {
  const Size size{m.kind};
  const int64_t begin = blockIdx.x * piece, count = m.rows * m.cols;
  const int64_t end = begin + piece < count ? begin + piece : count;
  double own = 0;
  for (int64_t k = begin + threadIdx.x; k < end; k += kQuantizeThreads) own = size.with(own, m.x[k]);
  const double all = of_block(size, own);
  if (threadIdx.x == 0) parts[blockIdx.x] = all;
}
static __global__ void __launch_bounds__(kQuantizeThreads)
    scale_of_parts_kernel(Matrix m, int count, const double* parts) {
  const Size size{m.kind};
  double own = 0;
  for (int k = threadIdx.x; k < count; k += kQuantizeThreads) own = size.both(own, parts[k]);
  const double all = of_block(size, own);
  if (threadIdx.x == 0) *m.scale = size.scale(all, m.rows * m.cols);
}

// A scale for each group of rows of each column: a block has 32 columns of a group.
static __global__ void __launch_bounds__(kQuantizeThreads) scales_of_columns_kernel(Matrix m) {
  constexpr int kSlices = kQuantizeThreads / 32;
  __shared__ double parts[kSlices][32];
  const Size size{m.kind};
  const int64_t strips = (m.cols + 31) / 32, g = blockIdx.x / strips;
  const int64_t j = blockIdx.x % strips * 32 + threadIdx.x % 32;
  const int64_t first = g * m.group, last = first + m.group < m.rows ? first + m.group : m.rows;
  double own = 0;
  if (j < m.cols)
    for (int64_t i = first + threadIdx.x / 32; i < last; i += kSlices)
      own = size.with(own, m.x[i * m.cols + j]);
  parts[threadIdx.x / 32][threadIdx.x % 32] = own;
  __syncthreads();
  if (threadIdx.x >= 32 || j >= m.cols) return;
  for (int s = 1; s < kSlices; ++s) own = size.both(own, parts[s][threadIdx.x]);
  m.scale[g * m.cols + j] = size.scale(own, last - first);
}

static __global__ void __launch_bounds__(kQuantizeThreads) quantize_kernel(Matrix m, uint8_t* values) {
  const int64_t count = m.rows * m.cols;
  for (int64_t k = blockIdx.x * static_cast<int64_t>(kQuantizeThreads) + threadIdx.x; k < count;
       k += gridDim.x * static_cast<int64_t>(kQuantizeThreads))
    values[k] = value_of(m.kind, m.x[k], m.scale[m.scale_at(k / m.cols, k % m.cols)]);
}

static __global__ void __launch_bounds__(kQuantizeThreads)
    restore_kernel(Matrix m, const uint8_t* values, float* x) {
  const int64_t count = m.rows * m.cols;
  for (int64_t k = blockIdx.x * static_cast<int64_t>(kQuantizeThreads) + threadIdx.x; k < count;
       k += gridDim.x * static_cast<int64_t>(kQuantizeThreads))
    x[k] = number_of(m.kind, values[k]) * m.scale[m.scale_at(k / m.cols, k % m.cols)];
}

// Four rows of values in one of bytes.
static __global__ void __launch_bounds__(kQuantizeThreads)
    pack_kernel(const int8_t* values, int64_t rows, int64_t cols, uint8_t* packed) {
  const int64_t count = (rows + 3) / 4 * cols;
  for (int64_t k = blockIdx.x * static_cast<int64_t>(kQuantizeThreads) + threadIdx.x; k < count;
       k += gridDim.x * static_cast<int64_t>(kQuantizeThreads)) {
    const int64_t row = 4 * (k / cols), j = k % cols;
    unsigned byte = 0;
    for (int i = 0; i < 4 && row + i < rows; ++i)
      byte |= (static_cast<unsigned>(values[(row + i) * cols + j]) & 3) << (2 * i);
    packed[k] = static_cast<uint8_t>(byte);
  }
}
static __global__ void __launch_bounds__(kQuantizeThreads)
    unpack_kernel(const uint8_t* packed, int64_t rows, int64_t cols, int8_t* values) {
  const int64_t count = rows * cols;
  for (int64_t k = blockIdx.x * static_cast<int64_t>(kQuantizeThreads) + threadIdx.x; k < count;
       k += gridDim.x * static_cast<int64_t>(kQuantizeThreads)) {
    const int64_t row = k / cols;
    values[k] = ternary_of(packed[row / 4 * cols + k % cols], static_cast<int>(row % 4));
  }
}

// A grid of blocks that loop over n numbers.
inline int64_t blocks_over(const Gpu& gpu, int64_t n) {
  const int64_t most = 16 * gpu.limits().multiprocessors, all = blocks_for(n, kQuantizeThreads);
  return all < most ? all : most;
}

// Values and scales; `parts` has room for kMostParts.
inline void quantize_matrix(const Gpu& gpu, const Matrix& m, double* parts, uint8_t* values) {
  const int64_t count = m.rows * m.cols;
  if (m.column_step == 0 && m.group_step == 1) {
    gpu.launch(quantize_rows_kernel, m.rows, kQuantizeThreads, 0, m, values);
    return;
  }
  if (m.column_step == 0) {
    const int64_t piece = blocks_for(blocks_for(count, kMostParts), 4096) * 4096;
    const int64_t blocks = piece > 0 ? blocks_for(count, piece) : 0;
    gpu.launch(size_of_parts_kernel, blocks, kQuantizeThreads, 0, m, piece, parts);
    gpu.launch(scale_of_parts_kernel, 1, kQuantizeThreads, 0, m, blocks, parts);
  } else {
    gpu.launch(scales_of_columns_kernel, m.groups * blocks_for(m.cols, 32), kQuantizeThreads, 0, m);
  }
  gpu.launch(quantize_kernel, blocks_over(gpu, count), kQuantizeThreads, 0, m, values);
}

}  // namespace mdops::gpu_lowbit
