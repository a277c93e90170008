// Small kernels on numbers of atoms.
#pragma once

#include "common/gpu.h"
#include "type_nets/gpu_loops.h"

namespace mdops::core {

constexpr int kNumberThreads = 256;

__device__ inline int64_t thread_number() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

template <class T>
static __global__ void add_kernel(const T* from, T factor, int64_t count, T* to) {
  const int64_t k = thread_number();
  if (k < count) to[k] += factor * from[k];
}

// Copies `columns` numbers for all rows of the nets, with strides `from_apart` and `to_apart`: from the rows'
// atoms, or (`by_row`) from rows; zeros without an atom.
template <class T>
static __global__ void to_rows_kernel(TypeRows rows, bool by_row, const T* from, int64_t from_apart,
                                      int64_t columns, T* to, int64_t to_apart) {
  const int64_t k = thread_number(), row = k / columns, column = k % columns;
  if (row >= rows.rows) return;
  const int i = rows.row_atom[row];
  to[row * to_apart + column] = i < 0 ? T(0) : from[(by_row ? row : i) * from_apart + column];
}

// The inverse, to atoms.
template <class T>
static __global__ void to_atoms_kernel(TypeRows rows, const T* from, int64_t from_apart, int64_t columns,
                                       T* to) {
  const int64_t k = thread_number(), row = k / columns, column = k % columns;
  if (row >= rows.rows || rows.row_atom[row] < 0) return;
  to[rows.row_atom[row] * columns + column] = from[row * from_apart + column];
}

// Launches a thread for each of `count` numbers.
template <class... Parameters, class... Args>
void launch_numbers(const Gpu& gpu, void (*kernel)(Parameters...), int64_t count, const Args&... args) {
  gpu.launch_for(count, kNumberThreads, kernel, args...);
}

}  // namespace mdops::core
