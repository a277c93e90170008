#include "common/cuda.h"
#include "grid_product/gpu_kernels.h"
#include "grid_product/ops.h"

namespace mdops {

template <class T>
static void run_grid(const CudaOp& op, const GridArgs<T>& args) {
  gpu_grid::run(op, args);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::GridOps<mdops::OnGpu>::implement(m);
}
