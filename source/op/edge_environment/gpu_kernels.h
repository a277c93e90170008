// A thread per edge, or in the backward pass per slot.
#pragma once

#include "common/gpu.h"
#include "edge_environment/edge_environment.h"

namespace mdops::gpu_edge_environment {

constexpr int kThreads = 256;

template <class T, bool kBack>
__global__ void __launch_bounds__(kThreads) environment_kernel(EdgeEnvironmentArgs<T> args) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= (kBack ? args.atoms * args.width : args.edges)) return;
  if constexpr (kBack)
    args.run_slot(n);
  else
    args.run_edge(n);
}

template <class T>
void run_edge_environment(const Gpu& gpu, const EdgeEnvironmentArgs<T>& args) {
  if (args.by_displacements)
    gpu.launch_for(args.atoms * args.width, kThreads, environment_kernel<T, true>, args);
  else
    gpu.launch_for(args.edges, kThreads, environment_kernel<T, false>, args);
}

}  // namespace mdops::gpu_edge_environment

namespace mdops {
using gpu_edge_environment::run_edge_environment;
}
