#include "common/cuda.h"
#include "degree_norm/gpu_kernels.h"
#include "degree_norm/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::DegreeNormOps<mdops::OnGpu>::implement(m);
}
