#include "common/cuda.h"
#include "grid_product/gpu_kernels.h"
#include "grid_product/ops.h"

MDOPS_ON_GPU(GridOps)
