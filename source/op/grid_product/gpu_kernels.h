// Products at points on a GPU. On a grid of rotations (angles.h) a thread has a channel of an atom, with all
// its numbers in registers. For other points, float32 uses the tensor cores (gpu_tensor.h) if the matrices
// fit into shared memory; else a warp has 32 channels of an atom, with its coefficients in shared memory.
#pragma once

#include <algorithm>
#include <type_traits>

#include "common/gpu.h"
#include "common/rows.h"
#include "gemm/gpu_memory.h"
#include "grid_product/angles.h"
#include "grid_product/gpu_tensor.h"

namespace mdops::gpu_grid {

template <class T>
constexpr int kAngleThreads = 256 / sizeof(T);

template <int L, class T>
__global__ void __launch_bounds__(kAngleThreads<T>) angle_kernel(const GridArgs<T> args) {
  using Own = grid_angles::Grid<L>;
  alignas(16) __shared__ T tables[3][Own::kTables];
  for (int k = threadIdx.x; k < Own::kTables; k += kAngleThreads<T>) {
    tables[0][k] = grid_angles::table_number<L>(args.a, k);
    tables[1][k] = grid_angles::table_number<L>(args.b, k);
    tables[2][k] = grid_angles::table_number<L>(args.out, k);
  }
  __syncthreads();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kAngleThreads<T> + threadIdx.x;
  if (thread >= args.atoms * args.channels) return;
  const int64_t at = thread / args.channels * Own::kCoefficients * args.channels + thread % args.channels;
  T y[Own::kCoefficients] = {};
  if constexpr (L == 2) {
    T u[Own::kCoefficients], v[Own::kCoefficients];
#pragma unroll
    for (int d = 0; d < Own::kCoefficients; ++d) {
      u[d] = args.u[at + d * args.channels];
      v[d] = args.v[at + d * args.channels];
    }
    grid_angles::add_product<L>(
        tables[0], tables[1], tables[2], [&](int d) { return u[d]; }, [&](int d) { return v[d]; }, y);
  } else {
    // Registers do not suffice for both.
    __shared__ T u[Own::kCoefficients][kAngleThreads<T>], v[Own::kCoefficients][kAngleThreads<T>];
    const int own = static_cast<int>(threadIdx.x);
#pragma unroll 16
    for (int d = 0; d < Own::kCoefficients; ++d) {
      u[d][own] = args.u[at + d * args.channels];
      v[d][own] = args.v[at + d * args.channels];
    }
    grid_angles::add_product<L>(
        tables[0], tables[1], tables[2], [&](int d) { return u[d][own]; }, [&](int d) { return v[d][own]; },
        y);
  }
#pragma unroll
  for (int d = 0; d < Own::kCoefficients; ++d) args.y[at + d * args.channels] = y[d];
}

template <class T>
__global__ void __launch_bounds__(kWarp) plain_kernel(const GridArgs<T> args) {
  T* const u = reinterpret_cast<T*>(net_memory()) + threadIdx.x;
  T *const v = u + args.first * kWarp, *const y = v + args.second * kWarp;
  const int64_t pieces = (args.channels + kWarp - 1) / kWarp;
  for (int64_t piece = blockIdx.x; piece < args.atoms * pieces; piece += gridDim.x) {
    const int64_t n = piece / pieces, c = piece % pieces * kWarp + threadIdx.x;
    const bool has = c < args.channels;
    for (int64_t d = 0; d < args.first; ++d)
      u[d * kWarp] = has ? args.u[(n * args.first + d) * args.channels + c] : T(0);
    for (int64_t d = 0; d < args.second; ++d)
      v[d * kWarp] = has ? args.v[(n * args.second + d) * args.channels + c] : T(0);
    for (int64_t d = 0; d < args.results; ++d) y[d * kWarp] = 0;
    for (int64_t g = 0; g < args.points; ++g) {
      T of_u = 0, of_v = 0;
      for (int64_t d = 0; d < args.first; ++d) of_u += args.a[g * args.first + d] * u[d * kWarp];
      for (int64_t d = 0; d < args.second; ++d) of_v += args.b[g * args.second + d] * v[d * kWarp];
      for (int64_t d = 0; d < args.results; ++d)
        y[d * kWarp] += args.out[g * args.results + d] * (of_u * of_v);
    }
    for (int64_t d = 0; has && d < args.results; ++d)
      args.y[(n * args.results + d) * args.channels + c] = y[d * kWarp];
  }
}

template <class T>
void run_grid(const Gpu& gpu, const GridArgs<T>& args) {
  if (grid_angles::with_degree(args, [&]<int L>() {
        gpu.launch(angle_kernel<L, T>, blocks_for(args.atoms * args.channels, kAngleThreads<T>),
                   kAngleThreads<T>, 0, args);
      }))
    return;
  if constexpr (std::is_same_v<T, float>)
    if (by_tensor_cores(gpu, args)) return run_tensor(gpu, args);
  const int64_t pieces = args.atoms * ((args.channels + kWarp - 1) / kWarp);
  gpu.launch(plain_kernel<T>, std::min<int64_t>(pieces, 32 * gpu.limits().multiprocessors), kWarp,
             (args.first + args.second + args.results) * kWarp * static_cast<int64_t>(sizeof(T)), args);
}

}  // namespace mdops::gpu_grid

namespace mdops {
using gpu_grid::run_grid;
}  // namespace mdops
