#include "common/cuda.h"
#include "edge_frames/gpu_kernels.h"
#include "edge_frames/ops.h"

namespace mdops {

MDOPS_INSTANTIATE_OF(make_frames, CudaOp, FrameArgs, int64_t)
MDOPS_INSTANTIATE_OF(make_frames, CudaOp, FrameBackwardArgs, int64_t)

}  // namespace mdops

MDOPS_ON_GPU(EdgeFrameOps)
