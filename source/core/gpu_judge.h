// What the host wants to know of a step's answers: their energy, and whether the neighbours are in order.
#pragma once

#include "common/gpu.h"
#include "common/rows.h"
#include "spline_potential/gpu_step.h"

namespace mdops::core {

// Of the atoms that a block of threads looked at.
struct Verdict {
  double energy;
  float nearest;  // NaN if any is
  int32_t same;   // the first atom at the place of another, and the first with too many neighbours; kNone
  int32_t crowded;
};

constexpr int32_t kNone = 0x7fffffff;
constexpr int kJudgeThreads = 256, kJudgeBlocks = 64;

__device__ inline void join(Verdict& to, const Verdict& other) {
  to.energy += other.energy;
  if (!(other.nearest >= to.nearest) && to.nearest == to.nearest) to.nearest = other.nearest;
  to.same = min(to.same, other.same), to.crowded = min(to.crowded, other.crowded);
}

// Always with kJudgeBlocks blocks, so that the sum has one order.
static __global__ void __launch_bounds__(kJudgeThreads)
    judge_kernel(StepArgs p, int centers, bool mixed, bool extends, Verdict* verdicts) {
  __shared__ Verdict shared[kJudgeThreads];
  Verdict own{0, p.cutoff.cutoff, kNone, kNone};
  for (int i = blockIdx.x * kJudgeThreads + threadIdx.x; i < centers; i += kJudgeBlocks * kJudgeThreads) {
    Verdict atom{p.energy[i], p.nearest[i], p.nearest[i] == 0 ? i : kNone, kNone};
    int all = 0;
    for (int t = 0; t < p.ntypes; ++t) {
      const int n = p.within[static_cast<int64_t>(i) * p.ntypes + t];
      all += n;
      if (!mixed && n > p.places.sel[t]) atom.crowded = i;
    }
    if (mixed && all > p.places.sel[0]) atom.crowded = i;
    if (extends) atom.crowded = kNone;
    join(own, atom);
  }
  shared[threadIdx.x] = own;
  for (int half = kJudgeThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) join(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  if (threadIdx.x == 0) verdicts[blockIdx.x] = shared[0];
}

}  // namespace mdops::core
