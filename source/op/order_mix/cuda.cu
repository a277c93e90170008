#include "common/cuda.h"
#include "order_mix/gpu_kernels.h"
#include "order_mix/mix.h"
#include "order_mix/ops.h"

namespace mdops {

template <class Args>
void mix_orders(const CudaOp& op, const Args& args) {
  run_orders(op, args);
}
template void mix_orders(const CudaOp&, const OrderMixArgs<float>&);
template void mix_orders(const CudaOp&, const OrderMixArgs<double>&);
template void mix_orders(const CudaOp&, const OrderOuterArgs<float>&);
template void mix_orders(const CudaOp&, const OrderOuterArgs<double>&);

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::OrderMixOps<mdops::OnGpu>::implement(m);
}
