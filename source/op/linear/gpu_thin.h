// Products whose depth or number of columns is one: their time is that of reading and writing rows.
#pragma once

#include "common/gpu.h"
#include "common/vector.h"

namespace mdops::gpu_linear {

constexpr int kThinThreads = 256;

// Rows of 1 << lanes threads each, which take vectors in turn.
struct ThinRow {
  int64_t row;
  int lane, step;

  __device__ explicit ThinRow(int lanes)
      : row((static_cast<int64_t>(blockIdx.x) * kThinThreads + threadIdx.x) >> lanes),
        lane(static_cast<int>(threadIdx.x) & ((1 << lanes) - 1)),
        step(1 << lanes) {}
};

// y = a b + bias, with a (rows,), b (columns,).
template <class T, int size>
__global__ void __launch_bounds__(kThinThreads)
    outer_kernel(int64_t rows, int64_t columns, const T* a, const T* b, const T* bias, T* y, int lanes) {
  const ThinRow own(lanes);
  if (own.row >= rows) return;
  const T factor = a[own.row];
  for (int64_t k = int64_t{own.lane} * size; k < columns; k += own.step * size) {
    Vector<T, size> found(b + k);
#pragma unroll
    for (int c = 0; c < size; ++c) found[c] = factor * found[c] + (bias ? bias[k + c] : T(0));
    found.store(y + own.row * columns + k);
  }
}

// y = <a, b> + bias, with a (rows, depth), b (depth,).
template <class T, int size>
__global__ void __launch_bounds__(kThinThreads)
    dot_kernel(int64_t rows, int64_t depth, const T* a, const T* b, const T* bias, T* y, int lanes) {
  const ThinRow own(lanes);
  T sum = 0;
  for (int64_t k = int64_t{own.lane} * size; own.row < rows && k < depth; k += own.step * size) {
    const Vector<T, size> left(a + own.row * depth + k), right(b + k);
#pragma unroll
    for (int c = 0; c < size; ++c) sum += left[c] * right[c];
  }
  for (int step = own.step / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (own.row < rows && own.lane == 0) y[own.row] = sum + (bias ? bias[0] : T(0));
}

// Calls launch<vector size>(log2 of the threads per row, blocks) for rows of `width` numbers.
template <class T, class F>
void with_thin_rows(int64_t rows, int64_t width, const F& launch) {
  with_vector<T>(width, [&]<int size>() {
    int lanes = 0;
    while ((1 << lanes) < kWarp && (size << lanes) < width) ++lanes;
    launch.template operator()<size>(lanes, blocks_for(rows << lanes, kThinThreads));
  });
}

}  // namespace mdops::gpu_linear
