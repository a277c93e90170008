// Products whose depth or number of columns is one: their time is that of reading and writing rows.
#pragma once

#include "common/gpu.h"
#include "common/gpu_unroll.h"
#include "common/vector.h"

namespace mdops::gpu_linear {

// y = a b + bias, with a (rows,), b (columns,).
template <class T, int size>
__global__ void __launch_bounds__(kRowThreads)
    outer_kernel(int64_t rows, int64_t columns, const T* a, const T* b, const T* bias, T* y, int lanes) {
  const RowOfLanes own(lanes);
  if (own.row >= rows) return;
  const T factor = a[own.row];
  for (int64_t k = int64_t{own.first} * size; k < columns; k += own.step * size) {
    Vector<T, size> found(b + k);
    unrolled<size>([&](int c) { found[c] = factor * found[c] + (bias ? bias[k + c] : T(0)); });
    found.store(y + own.row * columns + k);
  }
}

// y = <a, b> + bias, with a (rows, depth), b (depth,).
template <class T, int size>
__global__ void __launch_bounds__(kRowThreads)
    dot_kernel(int64_t rows, int64_t depth, const T* a, const T* b, const T* bias, T* y, int lanes) {
  const RowOfLanes own(lanes);
  T sum = 0;
  for (int64_t k = int64_t{own.first} * size; own.row < rows && k < depth; k += own.step * size) {
    const Vector<T, size> left(a + own.row * depth + k), right(b + k);
    unrolled<size>([&](int c) { sum += left[c] * right[c]; });
  }
  for (int step = own.step / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (own.row < rows && own.first == 0) y[own.row] = sum + (bias ? bias[0] : T(0));
}

}  // namespace mdops::gpu_linear
