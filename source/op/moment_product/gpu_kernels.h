// A block has kRows rows and a thread one n of them, so that a number of the table is read for kRows x
// Columns sums.
#pragma once

#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "moment_product/moment_product.h"

namespace mdops::gpu_moment_product {

constexpr int kRows = 8, kDepth = 32;  // of a block at once
constexpr int kMostThreads = 256;

template <class T>
__global__ void transpose_kernel(const T* from, int64_t numbers, int rows, int columns, T* to) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= numbers) return;
  const int64_t row = at % rows, column = at / rows % columns, table = at / rows / columns;
  to[at] = from[(table * rows + row) * columns + column];
}

// One number of each atom becomes NaN, which stays if no row names the atom.
template <class T>
__global__ void mark_kernel(int64_t atoms, int64_t apart, T* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < atoms) out[i * apart] = not_a_number<T>();
}

// How many rows each atom has; for atoms with several, one number becomes NaN.
template <class T>
__global__ void count_kernel(MomentProductArgs<T> p, int32_t* count) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int atom = row < p.rows ? p.row_atom[row] : -1;
  if (atom >= 0 && atom < p.atoms) atomicAdd(count + atom, 1);
}
template <class T>
__global__ void mark_repeated_kernel(MomentProductArgs<T> p, const int32_t* count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < p.atoms && count[i] > 1) p.out[i * p.out_size()] = not_a_number<T>();
}

// `Columns` at a time.
template <class T, int Columns, bool Back>
__global__ void __launch_bounds__(kMostThreads) product_kernel(MomentProductArgs<T> p) {
  __shared__ __align__(16) T in[kDepth][kRows][Columns];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  const int count = static_cast<int>(min(static_cast<int64_t>(kRows), p.rows - first));
  int kind[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) kind[r] = r < count ? p.kind_of(first + r) : -1;
  for (int c = 0; c < p.columns; c += Columns)
    for (int begin = 0; begin < p.width; begin += blockDim.x) {
      const int n = begin + static_cast<int>(threadIdx.x);
      unsigned left = (1u << count) - 1;
      while (left) {  // only once, unless types mix
        int table = 0;
        unsigned same = 0;
#pragma unroll
        for (int r = kRows - 1; r >= 0; --r)
          if (left >> r & 1) table = kind[r];
#pragma unroll
        for (int r = 0; r < kRows; ++r)
          if (left >> r & 1 && kind[r] == table) same |= 1u << r;
        left &= ~same;
        T sum[kRows][Columns] = {};
        for (int d = 0; d < p.depth; d += kDepth) {
          const int deep = min(kDepth, p.depth - d);
          __syncthreads();
          for (int at = threadIdx.x; at < kRows * Columns * kDepth; at += blockDim.x) {
            // Adjacent in memory: the depth of a row's gradient, the columns of a row's moments.
            const int r = at / (Columns * kDepth), within = at % (Columns * kDepth);
            const int a = Back ? within / kDepth : within % Columns;
            const int k = Back ? within % kDepth : within / Columns;
            in[k][r][a] = same >> r & 1 && k < deep && table >= 0
                              ? p.in[p.template in_at<Back>(first + r, d + k, c + a)]
                              : T(0);
          }
          __syncthreads();
          if (n >= p.width || table < 0) continue;
          const T* const column = p.table + (static_cast<int64_t>(table) * p.depth + d) * p.width + n;
#pragma unroll 4
          for (int k = 0; k < deep; ++k) {
            const T factor = __ldg(column + static_cast<int64_t>(k) * p.width);
            unrolled<kRows, Columns>([&](int r, int a) { sum[r][a] += in[k][r][a] * factor; });
          }
        }
        if (n >= p.width) continue;
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          if (!(same >> r & 1)) continue;
          // Rows without an atom have no moments' gradients, and other wrong rows become NaN.
          const int atom = p.row_atom[first + r];
          if (Back && (atom < 0 || atom >= p.atoms)) continue;
#pragma unroll
          for (int a = 0; a < Columns; ++a)
            p.out[p.template out_at<Back>(first + r, n, c + a)] = table < 0 ? not_a_number<T>() : sum[r][a];
        }
      }
    }
}

}  // namespace mdops::gpu_moment_product
