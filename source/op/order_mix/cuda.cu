#include "common/cuda.h"
#include "order_mix/gpu_kernels.h"
#include "order_mix/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::OrderMixOps<mdops::OnGpu>::implement(m);
}
