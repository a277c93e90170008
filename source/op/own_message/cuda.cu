#include "common/cuda.h"
#include "own_message/gpu_kernels.h"
#include "own_message/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::OwnMessageOps<mdops::OnGpu>::implement(m);
}
