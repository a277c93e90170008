#include "common/cuda.h"
#include "order_mix/gpu_kernels.h"
#include "order_mix/mix.h"
#include "order_mix/ops.h"

namespace mdops {

template <class Args>
void mix_orders(const CudaOp& op, const Args& args) {
  run_orders(op, args);
}
MDOPS_OF_FLOATS(mix_orders, CudaOp, OrderMixArgs);
MDOPS_OF_FLOATS(mix_orders, CudaOp, OrderOuterArgs);

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::OrderMixOps<mdops::OnGpu>::implement(m);
}
