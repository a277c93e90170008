#include "common/cuda.h"
#include "edge_rotation/gpu_rotation.h"
#include "edge_rotation/ops.h"

namespace mdops {

void rotate(const CudaOp& op, const RotateArgs<float>& args) {
  run_rotation(op, args);
}
void rotate(const CudaOp& op, const RotateArgs<double>& args) {
  run_rotation(op, args);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeRotationOps<mdops::OnGpu>::implement(m);
}
