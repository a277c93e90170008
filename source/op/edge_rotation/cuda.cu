#include "common/cuda.h"
#include "edge_rotation/gpu_rotation.h"
#include "edge_rotation/ops.h"

namespace mdops {

MDOPS_INSTANTIATE_OF(rotate, CudaOp, RotateArgs)
MDOPS_INSTANTIATE_OF(rotate, CudaOp, RotateSumArgs)
MDOPS_INSTANTIATE_OF(rotate, CudaOp, RotateOuterArgs)

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeRotationOps<mdops::OnGpu>::implement(m);
}
