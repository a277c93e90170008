#include "axis_product/gpu_loops.h"
#include "axis_product/ops.h"
#include "common/cuda.h"

MDOPS_ON_GPU(AxisProductOps)
