#include "common/cuda.h"
#include "edge_rotation/gpu_rotation.h"
#include "edge_rotation/ops.h"

namespace mdops {

template <class Args>
void rotate(const CudaOp& op, const Args& args) {
  run_rotation(op, args);
}
MDOPS_OF_FLOATS(rotate, CudaOp, RotateArgs);
MDOPS_OF_FLOATS(rotate, CudaOp, RotateSumArgs);
MDOPS_OF_FLOATS(rotate, CudaOp, RotateOuterArgs);

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeRotationOps<mdops::OnGpu>::implement(m);
}
