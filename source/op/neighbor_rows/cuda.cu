#include "common/cuda.h"
#include "neighbor_rows/gpu_loops.h"
#include "neighbor_rows/ops.h"

MDOPS_ON_GPU(RowListOps, SplineRowsOps, EnvironmentRowsOps, HarmonicRowsOps, RowMomentOps)
