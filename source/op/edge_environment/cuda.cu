#include "common/cuda.h"
#include "edge_environment/gpu_kernels.h"
#include "edge_environment/ops.h"

namespace mdops {

template <class T>
static void run_edge_environment(const CudaOp& op, const EdgeEnvironmentArgs<T>& args) {
  gpu_edge_environment::run(op, args);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::EdgeEnvironmentOps<mdops::OnGpu>::implement(m);
}
