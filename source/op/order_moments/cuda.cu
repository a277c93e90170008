#include "common/cuda.h"
#include "order_moments/gpu_kernels.h"
#include "order_moments/ops.h"

MDOPS_ON_GPU(OrderMomentOps)
