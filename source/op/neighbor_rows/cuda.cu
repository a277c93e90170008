#include "common/cuda.h"
#include "neighbor_rows/gpu_loops.h"
#include "neighbor_rows/ops.h"

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::NeighborRowsOps<mdops::OnGpu>::implement(m);
}
