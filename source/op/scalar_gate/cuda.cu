#include "common/cuda.h"
#include "scalar_gate/gpu_kernels.h"
#include "scalar_gate/ops.h"

MDOPS_ON_GPU(ScalarGateOps, RowGateOps)
