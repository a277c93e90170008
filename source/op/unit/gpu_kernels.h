// The kernel on rows of length 1: a warp a row.
#pragma once

#include "common/rows.h"
#include "unit/unit.h"

namespace mdops {

namespace gpu_unit {

constexpr int kWarps = 8;

// The same in every lane, in the same order in every run.
template <class T>
__device__ __forceinline__ T sum_of_warp(T value) {
  for (int step = kWarp / 2; step; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

template <class T>
__global__ void unit_kernel(UnitArgs<T> args) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (n >= args.rows) return;
  const T* x = args.x + n * args.width;
  const T* g = args.grad ? args.grad + n * args.width : nullptr;
  const T* u = args.direction ? args.direction + n * args.width : nullptr;
  T xx = 0, x_g = 0, x_u = 0, u_g = 0;
  for (int64_t k = lane_index(); k < args.width; k += kWarp) {
    const T a = x[k], b = g ? g[k] : T(0), c = u ? u[k] : T(0);
    xx += a * a, x_g += a * b, x_u += a * c, u_g += b * c;
  }
  xx = sum_of_warp(xx), x_g = sum_of_warp(x_g), x_u = sum_of_warp(x_u), u_g = sum_of_warp(u_g);
  const UnitRow<T> row(xx);
  const UnitCurve<T> curve(row, x_u, x_g, u_g);
  const T of_x = row.of_x(u ? x_u : x_g);
  for (int64_t k = lane_index(); k < args.width; k += kWarp) {
    const int64_t at = n * args.width + k;
    if (!g) {
      args.out[at] = x[k] * row.inverse;
    } else {
      args.out[at] = row.inverse * (u ? u[k] : g[k]) + of_x * x[k];
      if (u) args.by_x[at] = curve.x * x[k] + curve.u * u[k] + curve.g * g[k];
    }
  }
}

}  // namespace gpu_unit

}  // namespace mdops
