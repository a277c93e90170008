#include "angle_ends/gpu_kernels.h"
#include "angle_ends/ops.h"
#include "common/cuda.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::AngleEndsOps<mdops::OnGpu>::implement(m);
}
