#include <algorithm>

#include "common/cuda.h"
#include "common/rows.h"
#include "ragged_plan/ragged_plan.h"

namespace mdops {

namespace {

constexpr int kPlanThreads = 512;

__device__ int64_t sum_of_block(int64_t mine, int64_t* of_warps) {
  int64_t all;
  sum_before<kPlanThreads / kWarp>(mine, of_warps, &all);
  return all;
}

// A thread a sequence. Each block adds up all sequences itself: the items before its own, and the number of
// all.
__global__ void __launch_bounds__(kPlanThreads) plan_kernel(PlanArgs args) {
  __shared__ int64_t of_warps[kPlanThreads / kWarp];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kPlanThreads, b = first + threadIdx.x;
  int64_t count = 0, place = 0, of_bias = 0;
  bool fits = true;
#pragma unroll 4
  for (int64_t k = threadIdx.x; k < args.sequences; k += kPlanThreads) {
    const PlanSequence each(args, k);
    fits &= each.fits, count += each.tiles;
    if (k < first) place += each.tiles, of_bias += each.squares;
  }
  fits = __syncthreads_and(fits);
  count = sum_of_block(count, of_warps);
  place = sum_of_block(place, of_warps), of_bias = sum_of_block(of_bias, of_warps);

  int64_t tiles = 0, squares = 0, all;
  if (b < args.sequences) {
    const PlanSequence own(args, b);
    tiles = own.tiles, squares = own.squares;
  }
  place += sum_before<kPlanThreads / kWarp>(tiles, of_warps, &all);
  of_bias += sum_before<kPlanThreads / kWarp>(squares, of_warps, &all);
  write_pieces(args, b, tiles, place, of_bias);
  if (b == 0) write_item(args, 0, fits ? count : -1, 0, 0, 0);
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kPlanThreads;
  for (int64_t n = count + b; n < args.items; n += threads) write_item(args, 1 + n, -1, -1, -1, -1);
}

}  // namespace

static void fill_plan(const CudaOp& op, const PlanArgs& args) {
  op.launch(plan_kernel, std::max<int64_t>(1, blocks_for(args.sequences, kPlanThreads)), kPlanThreads, 0,
            args);
}

}  // namespace mdops

MDOPS_ON_GPU(RaggedPlanOps)
