#include "angle_products/gpu_kernels.h"
#include "angle_products/ops.h"
#include "common/cuda.h"

MDOPS_ON_GPU(AngleProductOps)
