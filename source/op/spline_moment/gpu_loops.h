// What the ops of spline moments launch on a GPU, for PyTorch and for callers without PyTorch.
#pragma once

#include "common/gpu.h"
#include "spline_moment/spline_moment.h"

namespace mdops {

// Moments (atoms, ntypes, basis, columns), the neighbours within the cutoff (atoms, ntypes), the distance of
// the nearest (atoms,).
template <class T>
void run_spline_moments(const Gpu& gpu, const MomentArgs<T>& args, int64_t atoms, T* moments, int32_t* within,
                        T* nearest);

// The gradients of the pair vectors (atoms, width, 3), from those of the moments.
template <class T>
void run_spline_moment_gradients(const Gpu& gpu, const MomentArgs<T>& args, int64_t atoms, const T* grad,
                                 T* pairs);

}  // namespace mdops
