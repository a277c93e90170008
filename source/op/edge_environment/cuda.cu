#include "common/cuda.h"
#include "edge_environment/gpu_kernels.h"
#include "edge_environment/ops.h"

MDOPS_ON_GPU(EdgeEnvironmentOps)
