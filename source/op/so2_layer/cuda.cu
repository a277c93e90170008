#include "common/cuda.h"
#include "so2_layer/gpu_run.h"
#include "so2_layer/ops.h"

namespace mdops {

template <class T>
static void run_so2(const CudaOp& op, const So2Args<T>& args) {
  Tensor memory = empty(op, {gpu_so2::memory_for(op, args)}, ScalarType::Byte);
  gpu_so2::run(op, args, memory.mutable_data_ptr());
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::So2Ops<mdops::OnGpu>::implement(m);
}
