#include "common/cuda.h"
#include "node_update/gpu_kernels.h"
#include "node_update/ops.h"

MDOPS_ON_GPU(NodeUpdateOps)
