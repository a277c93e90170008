#include "angle_products/gpu_kernels.h"
#include "angle_products/ops.h"
#include "common/cuda.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::AngleProductOps<mdops::OnGpu>::implement(m);
}
