#include "common/cuda.h"
#include "order_mix/gpu_kernels.h"
#include "order_mix/ops.h"

namespace mdops {

template <class T>
static void run_orders(const CudaOp& op, const OrderMixArgs<T>& args) {
  gpu_order_mix::run(op, args);
}

template <class T>
static void run_orders(const CudaOp& op, const OrderOuterArgs<T>& args) {
  gpu_order_mix::run(op, args);
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::OrderMixOps<mdops::OnGpu>::implement(m);
}
