#include "spline_moment/gpu_loops.h"

#include "spline_moment/gpu_launch.h"

namespace mdops {

using namespace gpu_moment;

template <class T>
void run_spline_moments(const Gpu& gpu, const MomentArgs<T>& args, int64_t atoms, T* moments, int32_t* within,
                        T* nearest) {
  launch_moments<false>(gpu, args, atoms, static_cast<const T*>(nullptr), moments, within, nearest);
}

template <class T>
void run_spline_moment_gradients(const Gpu& gpu, const MomentArgs<T>& args, int64_t atoms, const T* grad,
                                 T* pairs) {
  launch_pull<false>(gpu, args, atoms, static_cast<const T*>(nullptr), grad, pairs);
}

MDOPS_INSTANTIATE(run_spline_moments, run_spline_moment_gradients)

}  // namespace mdops
