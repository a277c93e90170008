// Which kernels take what there is, for CUDA and for the emulated GPU.
#pragma once

#include <algorithm>

#include "common/gpu.h"
#include "harmonic_moment/gpu_kernels.h"

namespace mdops {

namespace gpu_harmonic {

constexpr int64_t kBlockShared = 64 << 10;  // that blocks take where atoms can share one: several run at once

template <class Work>
void with_degree(int degree, const Work& work) {
  if (degree == 2)
    work(std::integral_constant<int, 2>{});
  else if (degree == 3)
    work(std::integral_constant<int, 3>{});
  else
    work(std::integral_constant<int, 4>{});
}

// How many warps of a block have so many bytes each beside those that they share; 0: not one.
inline int warps_of(int64_t each, int64_t shared, int64_t most) {
  int warps = kWarps;
  while (warps > 0 && warps * each + shared > most) warps /= 2;
  return warps;
}

template <class T>
void run_moments(const Gpu& gpu, const HarmonicMomentArgs<T>& args, T* moments) {
  with_degree(args.degree, [&](auto degree) {
    const int64_t staged = sizeof(Staged<T, degree()>), most = gpu.limits().shared_bytes;
    const auto launch = [&](auto kernel, int warps, int64_t each) {
      gpu.launch(kernel, blocks_for(args.atoms, warps), warps * kWarp, warps * each, args, moments);
    };
    const int64_t whole = staged + args.basis * components_to(degree()) * sizeof(T);
    if (const int warps = warps_of(whole, 0, std::min(most, std::max(whole, kBlockShared))))
      launch(moments_kernel<T, degree(), true>, warps, whole);
    else
      launch(moments_kernel<T, degree(), false>, warps_of(staged, 0, most), staged);
  });
}

template <class T>
void run_gradients(const Gpu& gpu, const HarmonicMomentArgs<T>& args, const T* grad, const T* slope,
                   T* pair_grad) {
  with_degree(args.degree, [&](auto degree) {
    using Own = StagedGradients<T, degree()>;
    const int64_t tables = 2 * args.basis * Own::kStride * sizeof(T), most = gpu.limits().shared_bytes;
    const auto launch = [&](auto kernel, int64_t shared, int warps) {
      gpu.launch(kernel, args.atoms, warps * kWarp, shared + warps * sizeof(Own), args, grad, slope,
                 pair_grad);
    };
    if (const int warps = warps_of(sizeof(Own), tables, most))
      launch(gradients_kernel<T, degree(), true>, tables, warps);
    else
      launch(gradients_kernel<T, degree(), false>, 0, warps_of(sizeof(Own), 0, most));
  });
}

}  // namespace gpu_harmonic

}  // namespace mdops
