// Norms of atoms' rows on a GPU: a warp an atom.
#pragma once

#include "common/gpu.h"
#include "common/gpu_team.h"
#include "common/rows.h"
#include "degree_norm/degree_norm.h"

namespace mdops::gpu_degree_norm {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

template <class T>
__global__ void __launch_bounds__(kThreads) norm_kernel(const NormArgs<T> args) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (n < args.atoms) norm_atom(args, n, WarpTeam());
}

template <class T>
void run_norm(const Gpu& gpu, const NormArgs<T>& args) {
  gpu.launch(norm_kernel<T>, blocks_for(args.atoms, kWarps), kThreads, 0, args);
}

}  // namespace mdops::gpu_degree_norm

namespace mdops {
using gpu_degree_norm::run_norm;
}
