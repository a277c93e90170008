// A block an atom: what is read more than once, T and the gradient of D, lies in shared memory if it fits.
#pragma once

#include "axis_product/axis_product.h"
#include "common/rows.h"

namespace mdops {

namespace gpu_axis {

constexpr int kThreads = 256;
constexpr int kLanes = 8;  // that share a sum over a column of G

template <class T>
__device__ __forceinline__ const T* shared_copy(const T* from, int64_t count, T* to) {
  for (int64_t k = threadIdx.x; k < count; k += kThreads) to[k] = from[k];
  return to;
}

// Numbers from one row of G to the next in shared memory: an odd number, so that rows begin in different
// banks.
MDOPS_HD int shared_stride(int axis) {
  return axis | 1;
}

template <class T>
__device__ __forceinline__ T* block_memory() {
  extern __shared__ __align__(16) char axis_memory[];
  return reinterpret_cast<T*>(axis_memory);
}

template <class T, bool Copies>
__global__ void __launch_bounds__(kThreads) features_kernel(AxisArgs<T> p) {
  const T* t = p.t + blockIdx.x * p.t_size();
  if (Copies) t = shared_copy(t, p.t_size(), block_memory<T>());
  __syncthreads();
  T* const out = p.out + blockIdx.x * p.d_size();
  for (int at = threadIdx.x; at < p.d_size(); at += kThreads)
    out[at] = axis_feature(p, t, at / p.axis, at % p.axis);
}

template <class T, bool Copies>
__global__ void __launch_bounds__(kThreads) gradient_kernel(AxisArgs<T> p) {
  const T *t = p.t + blockIdx.x * p.t_size(), *g = p.grad + blockIdx.x * p.d_size();
  const int stride = Copies ? shared_stride(p.axis) : p.axis;
  if (Copies) {
    T* const memory = block_memory<T>();
    t = shared_copy(t, p.t_size(), memory);
    T* const rows = memory + p.t_size();
    for (int at = threadIdx.x; at < p.d_size(); at += kThreads)
      rows[at / p.axis * stride + at % p.axis] = g[at];
    g = rows;
  }
  __syncthreads();
  T* const out = p.out + blockIdx.x * p.t_size();
  for (int at = threadIdx.x; at < p.t_size(); at += kThreads)
    out[at] = axis_row_gradient(p, t, g, stride, at / p.width, at % p.width);
  __syncthreads();
  const int part = threadIdx.x % kLanes, sums = p.rows * p.axis;
  for (int first = 0; first < sums; first += kThreads / kLanes) {
    const int n = first + static_cast<int>(threadIdx.x) / kLanes, a = n / p.axis, k = n % p.axis;
    T sum = n < sums ? axis_column_gradient(p, t, g, stride, a, k, part, kLanes) : T(0);
    for (int d = kLanes / 2; d > 0; d /= 2) sum += __shfl_xor_sync(kAllLanes, sum, d);
    if (part == 0 && n < sums) out[a * p.width + k] += sum;
  }
}

}  // namespace gpu_axis

}  // namespace mdops
