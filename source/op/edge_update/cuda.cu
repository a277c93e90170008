#include "common/cuda.h"
#include "edge_update/gpu_kernels.h"
#include "edge_update/ops.h"

MDOPS_ON_GPU(EdgeUpdateOps)
