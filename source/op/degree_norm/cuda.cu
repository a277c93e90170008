#include "common/cuda.h"
#include "degree_norm/gpu_kernels.h"
#include "degree_norm/ops.h"

MDOPS_ON_GPU(DegreeNormOps)
