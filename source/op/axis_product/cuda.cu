#include "axis_product/gpu_loops.h"
#include "axis_product/ops.h"
#include "common/cuda.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::AxisProductOps<mdops::OnGpu>::implement(m);
}
