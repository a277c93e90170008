#include "common/cuda.h"
#include "scalar_gate/gpu_kernels.h"
#include "scalar_gate/ops.h"

namespace mdops {

template <class T>
static void run_scalar_gate(const CudaOp& op, const ScalarGateArgs<T>& args) {
  gpu_scalar_gate::run(op, args);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::ScalarGateOps<mdops::OnGpu>::implement(m);
}
