#include "common/cuda.h"
#include "node_update/gpu_kernels.h"
#include "node_update/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::NodeUpdateOps<mdops::OnGpu>::implement(m);
}
