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

// Runs need(bytes of device memory), which gives these, where what an atom has does not fit into shared
// memory.
template <class T, class Results, class Need>
void run_moments(const Gpu& gpu, const HarmonicMomentArgs<T>& args, const Results& results, Need&& need) {
  with_degree(args.degree, [&](auto degree) {
    const int64_t staged = sizeof(Staged<T, degree()>), most = gpu.limits().shared_bytes;
    const int64_t sums = args.basis * components_to(degree()) * sizeof(T);
    const auto launch = [&](auto kernel, int warps, int64_t each, T* room) {
      gpu.launch(kernel, blocks_for(args.atoms, warps), warps * kWarp, warps * each, args, room, results);
    };
    const int64_t whole = staged + sums;
    if (const int warps = warps_of(whole, 0, std::min(most, std::max(whole, kBlockShared))))
      launch(moments_kernel<T, degree(), true, Results>, warps, whole, nullptr);
    else
      launch(moments_kernel<T, degree(), false, Results>, warps_of(staged, 0, most), staged,
             static_cast<T*>(need(args.atoms * sums)));
  });
}

template <class T, class Source, class Need>
void run_gradients(const Gpu& gpu, const HarmonicMomentArgs<T>& args, const Source& source, T* pair_grad,
                   Need&& need) {
  with_degree(args.degree, [&](auto degree) {
    using Own = StagedGradients<T, degree()>;
    const int64_t tables = 2 * args.basis * Own::kStride * sizeof(T), most = gpu.limits().shared_bytes;
    const int64_t room = source.room(components_to(degree())) * sizeof(T);
    const auto launch = [&](auto kernel, int warps, int64_t shared, T* memory) {
      gpu.launch(kernel, args.atoms, warps * kWarp, shared + warps * sizeof(Own), args, memory, source,
                 pair_grad);
    };
    if (const int warps = warps_of(sizeof(Own), tables + room, most))
      launch(gradients_kernel<T, degree(), true, Source>, warps, tables + room, nullptr);
    else
      launch(gradients_kernel<T, degree(), false, Source>, warps_of(sizeof(Own), room, most), room,
             static_cast<T*>(need(args.atoms * tables)));
  });
}

}  // namespace gpu_harmonic

}  // namespace mdops
