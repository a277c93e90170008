#include "common/cuda.h"
#include "edge_attention/gpu_kernels.h"
#include "edge_attention/ops.h"

namespace mdops {

template <class T>
static void run_edge_attention(const CudaOp& op, const EdgeAttentionArgs<T>& args) {
  const gpu_edge_attention::Plan<T> plan(op, args);
  Tensor memory = empty(op, {plan.memory()}, kDtype<T>);
  gpu_edge_attention::run(op, args, plan, memory.mutable_data_ptr<T>());
}

}  // namespace mdops

MDOPS_ON_GPU(EdgeAttentionOps)
