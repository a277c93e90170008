#include "common/cuda.h"
#include "grid_product/gpu_kernels.h"
#include "grid_product/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::GridOps<mdops::OnGpu>::implement(m);
}
