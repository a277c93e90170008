#include "common/cuda.h"
#include "edge_frames/gpu_kernels.h"
#include "edge_frames/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeFrameOps<mdops::OnGpu>::implement(m);
}
