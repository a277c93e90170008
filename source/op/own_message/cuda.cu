#include "common/cuda.h"
#include "own_message/gpu_kernels.h"
#include "own_message/ops.h"

namespace mdops {

template <class T>
static void run_own_message(const CudaOp& op, const OwnMessageArgs<T>& args) {
  gpu_own_message::run(op, args);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::OwnMessageOps<mdops::OnGpu>::implement(m);
}
