#include "common/cuda.h"
#include "edge_rotation/gpu_rotation.h"
#include "edge_rotation/ops.h"

namespace mdops {

template <class T>
static void run_rotation(const CudaOp& op, const RotateArgs<T>& args) {
  gpu_rotation::run_rotate(op, args);
}

template <class T>
static void run_rotation(const CudaOp& op, const RotateSumArgs<T>& args) {
  gpu_rotation::run_sum(op, args);
}

template <class T>
static void run_rotation(const CudaOp& op, const RotateOuterArgs<T>& args) {
  gpu_rotation::run_outer(op, args);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeRotationOps<mdops::OnGpu>::implement(m);
}
