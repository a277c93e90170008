#include "common/cuda.h"
#include "edge_rotation/gpu_rotation.h"
#include "edge_rotation/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeRotationOps<mdops::OnGpu>::implement(m);
}
