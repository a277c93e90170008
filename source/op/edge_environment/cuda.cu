#include "common/cuda.h"
#include "edge_environment/gpu_kernels.h"
#include "edge_environment/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeEnvironmentOps<mdops::OnGpu>::implement(m);
}
