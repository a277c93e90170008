// What no gradient by a pair vector exceeds, from those by the sums: forces are added up as integers of a
// scale that has to be known before (common/fixed_point.h).
//
// With |F| <= f and |dF/dr| <= s for a function, |dchi/dr| <= D = 2.36 / cutoff, and the harmonics of degree
// l, which are at most 1 and change by at most sqrt(l (l + 1)) < l + 1 across the direction, a pair at r has
//
//   sum_c |first_c| (D f_c + s_c) + 2 D |second mass| + 4 D |fourth mass|
//     + sum_lm,c |second_lm,c| (2 D f_c + s_c + (l + 1) f_c / r)
//
// at most, and r is not below the nearest neighbour's.
#pragma once

#include "displacements/gpu_force_sums.h"
#include "harmonic_moment/harmonic_moment.h"

namespace mdops::gpu_harmonic {

constexpr int kBoundWarps = 8, kBoundBlocks = 6;  // of a multiprocessor

// A warp an atom.
inline __global__ void __launch_bounds__(kBoundWarps* kWarp)
    largest_gradient_kernel(HarmonicMomentArgs<float> args, HarmonicSumArgs<float> p,
                            HarmonicForceArgs<float> of, double* largest) {
  const float fall = 2.36f / args.cutoff, *const value = of.most, *const slope = value + p.firsts;
  const int lane = lane_index(), warp = warp_index();
  const int firsts = static_cast<int>(p.firsts), seconds = static_cast<int>(p.seconds);
  const int others = components_to(args.degree) * seconds, warps = static_cast<int>(gridDim.x) * kBoundWarps;
  const float grows = static_cast<float>(args.degree + 1);
  float most = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kBoundWarps + warp; i < args.atoms; i += warps) {
    const float *const first = of.by_first + i * p.width(), *const second = of.by_second + i * others;
    const float nearest = of.nearest[i], inverse = nearest == 0 ? 0 : 1 / nearest;
    float sum = 0;
    for (int c = lane; c < firsts; c += kWarp) sum += fabsf(first[c]) * (fall * value[c] + slope[c]);
    if (lane < 2) sum += fabsf(first[firsts + lane]) * fall * static_cast<float>(2 + 2 * lane);
    for (int k = seconds + lane; k < others; k += kWarp) {
      const int c = k & (seconds - 1);
      sum += fabsf(second[k]) * ((2 * fall + grows * inverse) * value[c] + slope[c]);
    }
    sum = warp_sum(sum);
    if (isfinite(sum)) most = fmaxf(most, sum);
  }
  __shared__ float of_warps[kBoundWarps];
  if (lane == 0) of_warps[warp] = most;
  __syncthreads();
  if (threadIdx.x >= 2) return;
  for (float one : of_warps) most = fmaxf(most, one);
  // Rounding may exceed this a little.
  const double all = fmax(1.01 * static_cast<double>(most), ForceSums<1>::kLeast);
  atomic_max(largest + threadIdx.x, threadIdx.x == 0 ? all : all * static_cast<double>(args.cutoff));
}

}  // namespace mdops::gpu_harmonic
