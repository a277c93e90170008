// The kernel on rows of length 1: a warp a row.
#pragma once

#include "common/rows.h"
#include "unit/unit.h"

namespace mdops {

namespace gpu_unit {

constexpr int kWarps = 8;

// One of a kernel's arguments, which would else be copied to be indexed.
template <class T>
__device__ __forceinline__ T* pick(T* const (&all)[kMostUnitParts], int part) {
  return part == 0 ? all[0] : part == 1 ? all[1] : all[2];
}

// The same in every lane, in the same order in every run.
template <class T>
__device__ __forceinline__ T sum_of_warp(T value) {
  for (int step = kWarp / 2; step; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

template <class T>
__global__ void unit_kernel(UnitArgs<T> args) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;  // of a row's part
  if (n >= args.rows * args.parts) return;
  const int part = static_cast<int>(n % args.parts);
  const int64_t of_y = n / args.parts * args.width, of_x = n * args.width;
  const T* x = args.x + of_x;
  const T* g = pick(args.grad, part);
  const T* u = args.direction ? args.direction + of_x : nullptr;
  if (g) g += of_y;
  T xx = 0, x_g = 0, x_u = 0, u_g = 0;
  for (int64_t k = lane_index(); k < args.width; k += kWarp) {
    const T a = x[k], b = g ? g[k] : T(0), c = u ? u[k] : T(0);
    xx += a * a, x_g += a * b, x_u += a * c, u_g += b * c;
  }
  xx = sum_of_warp(xx), x_g = sum_of_warp(x_g), x_u = sum_of_warp(x_u), u_g = sum_of_warp(u_g);
  const UnitRow<T> row(xx);
  const UnitCurve<T> curve(row, x_u, x_g, u_g);
  const T by = row.of_x(u ? x_u : x_g);
  T* const to = g && !u ? args.of_x + of_x : pick(args.of_y, part) + of_y;
  for (int64_t k = lane_index(); k < args.width; k += kWarp) {
    if (!g) {
      to[k] = x[k] * row.inverse;
    } else {
      to[k] = row.inverse * (u ? u[k] : g[k]) + by * x[k];
      if (u) args.of_x[of_x + k] = curve.x * x[k] + curve.u * u[k] + curve.g * g[k];
    }
  }
}

}  // namespace gpu_unit

}  // namespace mdops
