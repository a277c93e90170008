// Norms of atoms' rows on a GPU: a warp per atom, or some of its lanes if an atom has few numbers.
#pragma once

#include "common/gpu.h"
#include "common/gpu_team.h"
#include "degree_norm/degree_norm.h"

namespace mdops::gpu_degree_norm {

constexpr int kThreads = 128, kFewNumbers = 128, kFewLanes = 8;

// In 32 bits, whose division takes a fifth of the time.
struct NumberPlace {
  int64_t k;

  template <class T>
  MDOPS_D T load(const T* from) const {
    return from[k];
  }
  template <class T>
  MDOPS_D void store(T* to, T value) const {
    to[k] = value;
  }
  MDOPS_D bool in_first(int64_t channels) const { return k < channels; }
  MDOPS_D uint32_t row(int64_t channels) const {
    return static_cast<uint32_t>(k) / static_cast<uint32_t>(channels);
  }
};

template <class T, int kLanes>
struct NormTeam {
  MDOPS_D void each(int64_t rows, int64_t channels, const auto& f) const {
    lanes.each(rows * channels, [&](int64_t k) { f(NumberPlace{k}); });
  }
  MDOPS_D T sum(int64_t rows, int64_t channels, const auto& f) const {
    T own = 0;
    each(rows, channels, [&](NumberPlace p) { own += f(p); });
    return lanes.sum(own);
  }

  LaneTeam<kLanes> lanes;
};

template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads) norm_kernel(const NormArgs<T> args) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes;
  // All lanes have an atom, some the last one.
  norm_atom(args, min(n, args.atoms - 1), NormTeam<T, kLanes>());
}

template <class T>
void run_norm(const Gpu& gpu, const NormArgs<T>& args) {
  const auto launch = [&]<int kLanes>() {
    gpu.launch(norm_kernel<T, kLanes>, blocks_for(args.atoms, kThreads / kLanes), kThreads, 0, args);
  };
  args.rows* args.channels > kFewNumbers ? launch.template operator()<kWarp>()
                                         : launch.template operator()<kFewLanes>();
}

}  // namespace mdops::gpu_degree_norm

namespace mdops {
using gpu_degree_norm::run_norm;
}
