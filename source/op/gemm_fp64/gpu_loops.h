// Products in float64 on a GPU, for ops and for callers that do not know PyTorch.
#pragma once

#include "common/gpu.h"
#include "gemm_fp64/gemm_fp64.h"

namespace mdops {

// `transposed`: the matrices are. Rows of different nets in one launch take about as long as those of one.
void run_gemm_fp64(const Gpu& gpu, const GemmFp64Args& args, bool transposed);

// Of transposed matrices, one a kind; `args.tile_net` does not count.
void run_product_to_moments(const Gpu& gpu, const GemmFp64Args& args, const MomentRows& moments);

}  // namespace mdops
