#include "common/cuda.h"
#include "harmonic_moment/gpu_run.h"
#include "harmonic_moment/ops.h"

namespace mdops {

template <class T>
static void run_harmonic_moments(const CudaOp& op, const HarmonicMomentArgs<T>& args, T* moments) {
  gpu_harmonic::run_moments(op, args, moments);
}

template <class T>
static void run_harmonic_moment_gradients(const CudaOp& op, const HarmonicMomentArgs<T>& args, const T* grad,
                                          const T* slope, T* pair_grad) {
  gpu_harmonic::run_gradients(op, args, grad, slope, pair_grad);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::HarmonicMomentOps<mdops::OnGpu>::implement(m);
}
