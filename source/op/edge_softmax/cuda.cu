#include "common/cuda.h"
#include "edge_softmax/gpu_kernels.h"
#include "edge_softmax/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeSoftmaxOps<mdops::OnGpu>::implement(m);
}
