#include "common/cuda.h"
#include "spline_moment/gpu_launch.h"
#include "spline_moment/gpu_loops.h"
#include "spline_moment/ops.h"

namespace mdops {

using namespace gpu_moment;

template <class T>
static void run_spline_moment_tangents(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms,
                                       const T* tangent, T* out) {
  launch_moments<true>(op, args, atoms, tangent, out, nullptr, static_cast<T*>(nullptr));
}

template <class T>
static void run_spline_moment_seconds(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms,
                                      const T* tangent, const T* grad, T* out) {
  launch_pull<true>(op, args, atoms, tangent, grad, out);
}

}  // namespace mdops

MDOPS_ON_GPU(SplineMomentOps)
