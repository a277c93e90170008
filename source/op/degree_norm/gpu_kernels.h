// Norms of atoms' rows on a GPU: a warp an atom, or some of its lanes where an atom has few numbers.
#pragma once

#include "common/gpu.h"
#include "common/gpu_team.h"
#include "common/rows.h"
#include "degree_norm/degree_norm.h"

namespace mdops::gpu_degree_norm {

constexpr int kThreads = 128, kFewNumbers = 128, kFewLanes = 8;

template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads) norm_kernel(const NormArgs<T> args) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  norm_atom(args, min(n, args.atoms - 1), LaneTeam<kLanes>());  // all lanes have an atom, some the last one
}

template <class T>
void run_norm(const Gpu& gpu, const NormArgs<T>& args) {
  const auto launch = [&]<int kLanes>() {
    gpu.launch(norm_kernel<T, kLanes>, blocks_for(args.atoms, kThreads / kLanes), kThreads, 0, args);
  };
  args.rows * args.channels > kFewNumbers ? launch.template operator()<kWarp>()
                                          : launch.template operator()<kFewLanes>();
}

}  // namespace mdops::gpu_degree_norm

namespace mdops {
using gpu_degree_norm::run_norm;
}
