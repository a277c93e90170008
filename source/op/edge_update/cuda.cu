#include "common/cuda.h"
#include "edge_update/gpu_kernels.h"
#include "edge_update/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeUpdateOps<mdops::OnGpu>::implement(m);
}
