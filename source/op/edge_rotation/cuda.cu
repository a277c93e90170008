#include "common/cuda.h"
#include "edge_rotation/gpu_rotation.h"
#include "edge_rotation/ops.h"

namespace mdops {

MDOPS_INSTANTIATE_OF(rotate, CudaOp, RotateArgs)
MDOPS_INSTANTIATE_OF(rotate, CudaOp, RotateSumArgs)
MDOPS_INSTANTIATE_OF(rotate, CudaOp, RotateOuterArgs)

}  // namespace mdops

MDOPS_ON_GPU(EdgeRotationOps)
