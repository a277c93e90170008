#include "common/cuda.h"
#include "scalar_gate/gpu_kernels.h"
#include "scalar_gate/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::ScalarGateOps<mdops::OnGpu>::implement(m);
}
