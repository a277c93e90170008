#include "common/cuda.h"
#include "edge_splines/gpu_kernels.h"
#include "edge_splines/ops.h"

namespace mdops {

template <class T>
static void run_edge_splines(const CudaOp& op, const EdgeSplineArgs<T>& args) {
  gpu_edge_splines::run(op, args);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeSplineOps<mdops::OnGpu>::implement(m);
}
