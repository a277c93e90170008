// Launching the kernels of spline moments: a kernel for each kind, with its warps' shared memory.
#pragma once

#include <algorithm>
#include <type_traits>

#include "common/gpu.h"
#include "spline_moment/gpu_kernels.h"

namespace mdops::gpu_moment {

// How many warps of a block can get this much shared memory each; 0 if none.
inline int warps_for(int64_t bytes) {
  return static_cast<int>(std::min<int64_t>(kMostWarps, kPlainShared / bytes));
}

// work(columns, gate), constants both.
template <class T, class Work>
void with_kind(const MomentArgs<T>& args, const Work& work) {
  if (args.radial)
    work(std::integral_constant<int, 1>{}, std::false_type{});
  else if (args.gated)
    work(std::integral_constant<int, 4>{}, std::true_type{});
  else
    work(std::integral_constant<int, 4>{}, std::false_type{});
}

template <bool Tangent, class T>
void launch_moments(const Gpu& gpu, const MomentArgs<T>& args, int64_t atoms, const T* tangent, T* moments,
                    int32_t* within, T* nearest) {
  with_kind(args, [&](auto columns, auto gated) {
    constexpr int64_t stage = sizeof(Staged<T, Tangent>);
    const int64_t sums = sizeof(T) * type_sums<columns()>(args.basis()) * Lanes<columns(), true>::kCopies;
    const bool fits = warps_for(stage + sums) > 0;
    const int warps = warps_for(fits ? stage + sums : stage);
    gpu.launch(fits ? moment_kernel<columns(), gated(), true, T, Tangent>
                    : moment_kernel<columns(), gated(), false, T, Tangent>,
               blocks_for(atoms, warps), warps * kWarp, warps * (fits ? stage + sums : stage), args, atoms,
               tangent, moments, within, nearest);
  });
}

template <bool Second, class T>
void launch_pull(const Gpu& gpu, const MomentArgs<T>& args, int64_t atoms, const T* tangent, const T* grad,
                 T* out) {
  with_kind(args, [&](auto columns, auto gated) {
    constexpr Gate gate = gated() ? Gate::alone : Gate::none;
    const int64_t buffer = sizeof(T) * 3 * kWarp, copy = sizeof(T) * padded_size<columns()>(args.basis());
    const bool fits = warps_for(buffer + copy) > 0;
    const int warps = warps_for(fits ? buffer + copy : buffer);
    gpu.launch(
        fits ? pull_kernel<columns(), gate, Second, true, T> : pull_kernel<columns(), gate, Second, false, T>,
        blocks_for(atoms, warps), warps * kWarp, warps * (fits ? buffer + copy : buffer), args, atoms,
        tangent, grad, out);
  });
}

}  // namespace mdops::gpu_moment
