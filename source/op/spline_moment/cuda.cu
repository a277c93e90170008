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
static void run_spline_moment_pulls(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms,
                                    const T* tangent, const T* grad, T* out) {
  tangent ? launch_pull<true>(op, args, atoms, tangent, grad, out)
          : run_spline_moment_gradients(op, args, atoms, grad, out);
}

}  // namespace mdops

MDOPS_ON_GPU(SplineMomentOps)
