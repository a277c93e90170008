#include "common/cuda.h"
#include "order_mix/gpu_kernels.h"
#include "order_mix/ops.h"

namespace mdops {

MDOPS_INSTANTIATE_OF(mix_orders, CudaOp, OrderMixArgs)
MDOPS_INSTANTIATE_OF(mix_orders, CudaOp, OrderOuterArgs)

}  // namespace mdops

MDOPS_ON_GPU(OrderMixOps)
