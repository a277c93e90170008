// Nodes after messages on a GPU: a thread has a number.
#pragma once

#include "common/gpu.h"
#include "node_update/node_update.h"

namespace mdops::gpu_node_update {

constexpr int kThreads = 256;

template <Activation kind, bool kGradients, class T>
__global__ void __launch_bounds__(kThreads) update_kernel(const NodeUpdateArgs<T> args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= args.numbers) return;
  // 32 bits are sooner divided.
  const bool is_short = args.numbers <= UINT32_MAX;
  const int64_t column =
      is_short ? static_cast<uint32_t>(k) % static_cast<uint32_t>(args.width) : k % args.width;
  if constexpr (kGradients)
    node_update_gradients<kind>(args, k, column);
  else
    update_node<kind>(args, k, column);
}

template <class T>
void run_node_update(const Gpu& gpu, const NodeUpdateArgs<T>& args) {
  if (!args.numbers) return;
  with_activation(args.activation, [&]<Activation kind>() {
    gpu.launch_for(args.numbers, kThreads,
                   args.grad ? update_kernel<kind, true, T> : update_kernel<kind, false, T>, args);
  });
}

}  // namespace mdops::gpu_node_update

namespace mdops {
using gpu_node_update::run_node_update;
}
