#include "angle_ends/gpu_kernels.h"
#include "angle_ends/ops.h"
#include "common/cuda.h"

MDOPS_ON_GPU(AngleEndsOps)
