#include "common/cuda.h"
#include "edge_softmax/gpu_kernels.h"
#include "edge_softmax/ops.h"

MDOPS_ON_GPU(EdgeSoftmaxOps)
