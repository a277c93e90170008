// A block per atom: T and the gradient of D, which are read repeatedly, are in shared memory if they fit. If
// T has four rows, as in descriptors, or three, a thread reads the numbers of a column at once: shared memory
// reads limit these kernels.
#pragma once

#include "axis_product/axis_product.h"
#include "common/gpu_unroll.h"
#include "common/rows.h"

namespace mdops::gpu_axis {

constexpr int kThreads = 256;
constexpr int kLanes = 8;  // that share a sum over a column of G

template <class T>
MDOPS_D const T* shared_copy(const T* from, int64_t count, T* to) {
  for (int64_t k = threadIdx.x; k < count; k += kThreads) to[k] = from[k];
  return to;
}

// Stride of rows of G in shared memory: odd, so that rows begin in different banks.
MDOPS_HD int shared_stride(int axis) {
  return axis | 1;
}

// Writes the numbers after an atom's D.
template <class T>
MDOPS_D void copy_behind(const AxisArgs<T>& p, int threads) {
  const T* const from = p.behind + blockIdx.x * p.more;
  T* const to = p.out + blockIdx.x * p.row_size() + p.d_size();
  for (int64_t k = threadIdx.x; k < p.more; k += threads) to[k] = from[k];
}

template <class T>
MDOPS_D T* block_memory() {
  extern __shared__ __align__(16) char axis_memory[];
  return reinterpret_cast<T*>(axis_memory);
}

template <class T, bool Copies>
__global__ void __launch_bounds__(kThreads) features_kernel(AxisArgs<T> p) {
  const T* t = p.t + blockIdx.x * p.t_size();
  if (Copies) t = shared_copy(t, p.t_size(), block_memory<T>());
  __syncthreads();
  T* const out = p.out + blockIdx.x * p.row_size();
  for (int at = threadIdx.x; at < p.d_size(); at += kThreads)
    out[at] = axis_feature(p, t, at / p.axis, at % p.axis);
  copy_behind(p, kThreads);
}

template <class T, bool Copies>
__global__ void __launch_bounds__(kThreads) gradient_kernel(AxisArgs<T> p) {
  const T *t = p.t + blockIdx.x * p.t_size(), *g = p.grad + blockIdx.x * p.row_size();
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
    sum = warp_sum<kLanes>(sum);
    if (part == 0 && n < sums) out[a * p.width + k] += sum;
  }
}

constexpr int kFourThreads = 128;
constexpr int kMostAxis = kFourThreads / 2;  // of the kernels for three or four rows

MDOPS_HD int whole_fours(int n) {
  return (n + 3) / 4 * 4;
}

template <class T>
struct alignas(16) FourRows {
  T of[4];
};

// For an atom with three or four rows: T by columns, with zeros for a missing fourth row, and the block's
// shared memory after it.
template <class T>
MDOPS_D T* columns_of(const AxisArgs<T>& p, FourRows<T>** columns) {
  *columns = reinterpret_cast<FourRows<T>*>(block_memory<T>());
  const T* const t = p.t + blockIdx.x * p.t_size();
  for (int k = threadIdx.x; k < p.width; k += kFourThreads)
    unrolled<4>([&](int a) { (*columns)[k].of[a] = a < p.rows ? t[a * p.width + k] : T(0); });
  return reinterpret_cast<T*>(*columns + p.width);
}

// A thread has one l of every (kFourThreads / axis)-th row k of D.
template <class T>
__global__ void __launch_bounds__(kFourThreads) four_features_kernel(AxisArgs<T> p) {
  FourRows<T>* columns;
  columns_of(p, &columns);
  copy_behind(p, kFourThreads);
  __syncthreads();
  const int together = kFourThreads / p.axis, l = threadIdx.x % p.axis;
  if (static_cast<int>(threadIdx.x) >= together * p.axis) return;
  const FourRows<T> own = columns[l];
  T* const out = p.out + blockIdx.x * p.row_size() + l;
#pragma unroll 4
  for (int k = threadIdx.x / p.axis; k < p.width; k += together) {
    const FourRows<T> t = columns[k];
    out[k * p.axis] = t.of[0] * own.of[0] + t.of[1] * own.of[1] + t.of[2] * own.of[2] + t.of[3] * own.of[3];
  }
}

// First the sums over columns of G, whose parts threads combine; then those over its rows.
template <class T>
__global__ void __launch_bounds__(kFourThreads) four_gradient_kernel(AxisArgs<T> p) {
  FourRows<T>* columns;
  T* const g = columns_of(p, &columns);
  const int stride = shared_stride(p.axis), together = kFourThreads / p.axis;
  FourRows<T>* const parts = reinterpret_cast<FourRows<T>*>(g + whole_fours(p.width * stride));
  const T* const from = p.grad + blockIdx.x * p.row_size();
  for (int at = threadIdx.x; at < p.d_size(); at += kFourThreads)
    g[at / p.axis * stride + at % p.axis] = from[at];
  __syncthreads();
  const int l = threadIdx.x % p.axis, part = threadIdx.x / p.axis;
  if (part < together) {
    FourRows<T> sum{};
    for (int k = part; k < p.width; k += together) {
      const FourRows<T> t = columns[k];
      const T factor = g[k * stride + l];
      unrolled<4>([&](int a) { sum.of[a] += factor * t.of[a]; });
    }
    parts[part * p.axis + l] = sum;
  }
  __syncthreads();
  T* const out = p.out + blockIdx.x * p.t_size();
  for (int k = threadIdx.x; k < p.width; k += kFourThreads) {
    FourRows<T> sum{};
    for (int m = 0; m < together && k < p.axis; ++m)
      unrolled<4>([&](int a) { sum.of[a] += parts[m * p.axis + k].of[a]; });
#pragma unroll 4
    for (int m = 0; m < p.axis; ++m) {
      const FourRows<T> t = columns[m];
      const T factor = g[k * stride + m];
      unrolled<4>([&](int a) { sum.of[a] += factor * t.of[a]; });
    }
#pragma unroll
    for (int a = 0; a < 4; ++a)
      if (a < p.rows) out[a * p.width + k] = sum.of[a];
  }
}

}  // namespace mdops::gpu_axis
