#include "common/cuda.h"
#include "neighbor_rows/gpu_loops.h"
#include "neighbor_rows/ops.h"

MDOPS_ON_GPU(RowListOps)
MDOPS_ON_GPU(SplineRowsOps)
MDOPS_ON_GPU(EnvironmentRowsOps)
MDOPS_ON_GPU(HarmonicRowsOps)
MDOPS_ON_GPU(RowMomentOps)
