// Products in float64 on a GPU, for ops and for callers without PyTorch.
#pragma once

#include "common/gpu.h"
#include "gemm_fp64/gemm_fp64.h"

namespace mdops {

// `transposed`: whether the matrices are. Rows of several nets in one launch take about as long as of one.
void run_gemm_fp64(const Gpu& gpu, const GemmFp64Args& args, bool transposed);

// With transposed matrices, one per kind; ignores `args.tile_net`.
void run_product_to_moments(const Gpu& gpu, const GemmFp64Args& args, const MomentRows& moments);

}  // namespace mdops
