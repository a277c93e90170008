// The kernels of softmax over segments: a warp a segment and column.
#pragma once

#include <math_constants.h>

#include <cstdint>

#include "common/gpu.h"
#include "common/rows.h"
#include "graph/softmax.h"

namespace mdops {

namespace gpu_softmax {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;

// The same in every lane, in the same order in every run.
template <class T>
__device__ __forceinline__ T sum_of_warp(T value) {
  for (int step = kWarp / 2; step; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

template <class T>
__global__ void __launch_bounds__(kThreads) softmax_kernel(SoftmaxArgs<T> args) {
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int64_t segment = warp / args.columns, column = warp % args.columns;
  if (segment >= args.segments || !args.fits(segment)) return;
  const int64_t begin = args.offsets[segment] + lane_index(), end = args.offsets[segment + 1];
  T max = static_cast<T>(-CUDART_INF_F);
  for (int64_t e = begin; e < end; e += kWarp) {
    const T x = args.x[e * args.columns + column];
    max = max < x ? x : max;
  }
  for (int step = kWarp / 2; step; step /= 2) {
    const T other = __shfl_xor_sync(kAllLanes, max, step);
    max = max < other ? other : max;
  }
  SoftmaxSums<T> sums;
  for (int64_t e = begin; e < end; e += kWarp) sums.add(args, e * args.columns + column, max);
  sums.one = sum_of_warp(sums.one);
  if (args.grad) sums.s = sum_of_warp(sums.s);
  if (args.direction) sums.t = sum_of_warp(sums.t), sums.q = sum_of_warp(sums.q);
  sums.normalize();
  for (int64_t e = begin; e < end; e += kWarp) sums.write(args, e * args.columns + column, max);
}

// Zeros behind the last segment.
template <class T>
__global__ void __launch_bounds__(kThreads) rest_kernel(SoftmaxArgs<T> args) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                last = args.offsets[args.segments];
  if (at >= args.rows * args.columns || last < 0 || at < last * args.columns) return;
  args.of_x[at] = 0;
  if (args.of_grad) args.of_grad[at] = 0;
}

// Rows that no segment has, or one that is not right, are not a number: all bits set.
template <class T>
void run_softmax(const Gpu& gpu, const SoftmaxArgs<T>& args) {
  const int64_t numbers = args.rows * args.columns;
  const auto spoil = [&](T* out) {
    if (out && numbers) gpu.check(cudaMemsetAsync(out, 0xff, numbers * sizeof(T), gpu.stream()));
  };
  spoil(args.of_x), spoil(args.of_grad);
  gpu.launch(softmax_kernel<T>, blocks_for(args.segments * args.columns, kWarps), kThreads, 0, args);
  gpu.launch(rest_kernel<T>, blocks_for(numbers, kThreads), kThreads, 0, args);
}

}  // namespace gpu_softmax

}  // namespace mdops
