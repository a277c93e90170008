// Products of pairs on a GPU: a thread per row, and for gradients several lanes per thing.
#pragma once

#include "angle_products/angle_products.h"
#include "common/gpu.h"
#include "common/rows.h"
#include "common/vector.h"

namespace mdops::gpu_angle_products {

constexpr int kThreads = 256, kLanes = 8;

template <class T>
__global__ void __launch_bounds__(kThreads) product_kernel(const AngleProductArgs<T> args) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row < args.rows) angle_product(args, row);
}

template <class T>
__global__ void __launch_bounds__(kThreads) gradient_kernel(const AngleProductArgs<T> args) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, thing = thread / kLanes;
  const int lane = static_cast<int>(thread % kLanes);
  T sum[4] = {};
  if (thing < args.things) angle_gradient(args, thing, lane, kLanes, sum);
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2)
#pragma unroll
    for (T& number : sum) number += __shfl_xor_sync(kAllLanes, number, step);
  if (thing < args.things && lane < 4)
    args.by_u[4 * thing + lane] = lane == 0 ? sum[0] : lane == 1 ? sum[1] : lane == 2 ? sum[2] : sum[3];
}

template <class T>
void run_angle_products(const Gpu& gpu, const AngleProductArgs<T>& args) {
  gpu.launch_for(args.rows, kThreads, product_kernel<T>, args);
}

template <class T>
void run_angle_gradients(const Gpu& gpu, const AngleProductArgs<T>& args) {
  gpu.launch_for(args.things * kLanes, kThreads, gradient_kernel<T>, args);
}

}  // namespace mdops::gpu_angle_products

namespace mdops {
using gpu_angle_products::run_angle_gradients, gpu_angle_products::run_angle_products;
}  // namespace mdops
