#include "spline_moment/ops.h"

namespace mdops {

constexpr int64_t kSplineGrain = 16;  // atoms a piece of work, at least

template <class T>
static void run_spline_moments(const Op&, const MomentArgs<T>& args, int64_t atoms, T* moments,
                               int32_t* within, T* nearest) {
  parallel(atoms, kSplineGrain, [&](int64_t begin, int64_t end) {
    MDOPS_RUN(moment_forward, args, begin, end, moments, within, nearest);
  });
}

template <class T>
static void run_spline_moment_tangents(const Op&, const MomentArgs<T>& args, int64_t atoms, const T* tangent,
                                       T* out) {
  parallel(atoms, kSplineGrain,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(moment_jvp, args, tangent, begin, end, out); });
}

template <class T>
static void run_spline_moment_pulls(const Op&, const MomentArgs<T>& args, int64_t atoms, const T* tangent,
                                    const T* grad, T* out) {
  parallel(atoms, kSplineGrain,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(moment_pull, args, tangent, grad, begin, end, out); });
}

}  // namespace mdops

MDOPS_ON_CPU(SplineMomentOps)
