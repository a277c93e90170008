// Products at points on a GPU. With 27 coefficients (degree 2 with frames up to |k| = 1) a thread has one or
// two channels of an atom, all of them in registers, and the matrices stand in shared memory, which all lanes
// read at one place. Other numbers of coefficients, and float64: a warp has 32 channels of an atom, its
// coefficients in shared memory.
#pragma once

#include <algorithm>
#include <type_traits>

#include "common/gpu.h"
#include "common/rows.h"
#include "common/vector.h"
#include "gemm/gpu_memory.h"
#include "grid_product/grid_product.h"

namespace mdops {

namespace gpu_grid {

constexpr int kThreads = 128, kCoefficients = 27;
constexpr int kRow = (kCoefficients + 3) / 4 * 4;  // of a matrix in shared memory, read by fours

// f(number k of a row in shared memory, k).
template <class F>
__device__ __forceinline__ void each_of(const float* row, const F& f) {
#pragma unroll
  for (int k = 0; k < kCoefficients; k += 4) {
    const float4 four = *reinterpret_cast<const float4*>(row + k);
    f(four.x, k);
    if (k + 1 < kCoefficients) f(four.y, k + 1);
    if (k + 2 < kCoefficients) f(four.z, k + 2);
    if (k + 3 < kCoefficients) f(four.w, k + 3);
  }
}

template <int kSize>
__global__ void __launch_bounds__(kThreads) register_kernel(const GridArgs<float> args) {
  float* const shared = reinterpret_cast<float*>(net_memory());
  const int points = static_cast<int>(args.points);
  for (int k = threadIdx.x; k < points * kCoefficients; k += kThreads) {
    float* const to = shared + k / kCoefficients * 3 * kRow + k % kCoefficients;
    to[0] = args.a[k], to[kRow] = args.b[k], to[2 * kRow] = args.out[k];
  }
  __syncthreads();
  const int64_t pieces = args.channels / kSize;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= args.atoms * pieces) return;
  const int64_t at = thread / pieces * kCoefficients * args.channels + thread % pieces * kSize;
  Vector<float, kSize> u[kCoefficients], v[kCoefficients], y[kCoefficients];
#pragma unroll
  for (int d = 0; d < kCoefficients; ++d) {
    u[d] = Vector<float, kSize>(args.u + at + d * args.channels);
    v[d] = Vector<float, kSize>(args.v + at + d * args.channels);
#pragma unroll
    for (int s = 0; s < kSize; ++s) y[d][s] = 0;
  }
#pragma unroll 1
  for (int g = 0; g < points; ++g) {
    const float* const row = shared + g * 3 * kRow;
    float of_u[kSize] = {}, of_v[kSize] = {};
    each_of(row, [&](float factor, int d) {
#pragma unroll
      for (int s = 0; s < kSize; ++s) of_u[s] += factor * u[d][s];
    });
    each_of(row + kRow, [&](float factor, int d) {
#pragma unroll
      for (int s = 0; s < kSize; ++s) of_v[s] += factor * v[d][s];
    });
#pragma unroll
    for (int s = 0; s < kSize; ++s) of_u[s] *= of_v[s];
    each_of(row + 2 * kRow, [&](float factor, int d) {
#pragma unroll
      for (int s = 0; s < kSize; ++s) y[d][s] += factor * of_u[s];
    });
  }
#pragma unroll
  for (int d = 0; d < kCoefficients; ++d) y[d].store(args.y + at + d * args.channels);
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

template <int kSize>
void run_registers(const Gpu& gpu, const GridArgs<float>& args) {
  gpu.launch(register_kernel<kSize>, blocks_for(args.atoms * (args.channels / kSize), kThreads), kThreads,
             args.points * 3 * kRow * sizeof(float), args);
}

template <class T>
void run(const Gpu& gpu, const GridArgs<T>& args) {
  if constexpr (std::is_same_v<T, float>) {
    const bool fits =
        args.points * 3 * kRow * static_cast<int64_t>(sizeof(float)) <= gpu.limits().shared_bytes;
    if (fits && args.first == kCoefficients && args.second == kCoefficients &&
        args.results == kCoefficients) {
      // Few atoms: a thread for each channel.
      const bool many = args.atoms * args.channels >= int64_t{1024} * gpu.limits().multiprocessors;
      return many && args.channels % 2 == 0 ? run_registers<2>(gpu, args) : run_registers<1>(gpu, args);
    }
  }
  const int64_t pieces = args.atoms * ((args.channels + kWarp - 1) / kWarp);
  gpu.launch(plain_kernel<T>, std::min<int64_t>(pieces, 32 * gpu.limits().multiprocessors), kWarp,
             (args.first + args.second + args.results) * kWarp * static_cast<int64_t>(sizeof(T)), args);
}

}  // namespace gpu_grid

}  // namespace mdops
