#include "common/cuda.h"
#include "neighbor_rows/gpu_loops.h"
#include "neighbor_rows/ops.h"

namespace mdops {

namespace {

struct NeighborRowsOnGpu : OnGpu {
  static Tensor by_pairs(const CudaOp& op, const SlotInputs& list) {
    return empty(op, {list.atoms, list.width, 3}, list.dtype);
  }
};

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::NeighborRowsOps<mdops::NeighborRowsOnGpu>::implement(m);
}
