#include "common/cuda.h"
#include "edge_splines/gpu_kernels.h"
#include "edge_splines/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeSplineOps<mdops::OnGpu>::implement(m);
}
