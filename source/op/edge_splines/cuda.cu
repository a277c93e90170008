#include "common/cuda.h"
#include "edge_splines/gpu_kernels.h"
#include "edge_splines/ops.h"

MDOPS_ON_GPU(EdgeSplineOps)
