#include "common/cuda.h"
#include "own_message/gpu_kernels.h"
#include "own_message/ops.h"

MDOPS_ON_GPU(OwnMessageOps)
