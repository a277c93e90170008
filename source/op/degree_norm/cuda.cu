#include "common/cuda.h"
#include "degree_norm/gpu_kernels.h"
#include "degree_norm/ops.h"

namespace mdops {

template <class T>
static void run_norm(const CudaOp& op, const NormArgs<T>& args) {
  gpu_degree_norm::run(op, args);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::DegreeNormOps<mdops::OnGpu>::implement(m);
}
