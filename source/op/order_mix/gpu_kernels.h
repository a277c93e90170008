// Mixed degrees on a GPU: a thread a column of an edge's rows, or one of its numbers.
#pragma once

#include "common/gpu.h"
#include "common/rows.h"
#include "order_mix/order_mix.h"

namespace mdops {

namespace gpu_order_mix {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) mix_kernel(const OrderMixArgs<T> args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k < args.shape.edges * args.shape.columns)
    mix_column(args, k / args.shape.columns, k % args.shape.columns);
}

template <class T>
__global__ void __launch_bounds__(kThreads) outer_kernel(const OrderOuterArgs<T> args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, numbers = args.shape.numbers();
  if (k < args.shape.edges * numbers) outer_number(args, k / numbers, k % numbers);
}

template <class T>
void run_orders(const Gpu& gpu, const OrderMixArgs<T>& args) {
  gpu.launch(mix_kernel<T>, blocks_for(args.shape.edges * args.shape.columns, kThreads), kThreads, 0, args);
}

template <class T>
void run_orders(const Gpu& gpu, const OrderOuterArgs<T>& args) {
  gpu.launch(outer_kernel<T>, blocks_for(args.shape.edges * args.shape.numbers(), kThreads), kThreads, 0,
             args);
}

}  // namespace gpu_order_mix

using gpu_order_mix::run_orders;

}  // namespace mdops
