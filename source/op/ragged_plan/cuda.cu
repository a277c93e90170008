#include "common/cuda.h"
#include "common/rows.h"
#include "ragged_plan/ragged_plan.h"

namespace mdops {

namespace {

constexpr int kThreads = 256, kEach = 4;  // sequences of a thread: all wait for each other a turn

// The sum of all threads' numbers before this one's; `all` gets that of all. Every thread must call it.
__device__ int64_t sum_before(int64_t mine, int64_t* of_warps, int64_t& all) {
  const int lane = lane_index(), warp = threadIdx.x / kWarp;
  int64_t sum = mine;
  for (int step = 1; step < kWarp; step *= 2) {
    const int64_t other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarp - 1) of_warps[warp] = sum;
  __syncthreads();
  int64_t before = sum - mine;
  all = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w < warp) before += of_warps[w];
    all += of_warps[w];
  }
  __syncthreads();
  return before;
}

// One block.
__global__ void __launch_bounds__(kThreads) plan_kernel(PlanArgs args) {
  __shared__ int64_t of_warps[kThreads / kWarp];
  int64_t place = 0, of_bias = 0;
  bool fits = true;
  for (int64_t first = 0; first < args.sequences; first += kThreads * kEach) {
    const int64_t begin = first + kEach * threadIdx.x;
    int64_t tiles[kEach] = {}, squares[kEach] = {}, own_tiles = 0, own_squares = 0, all_tiles, all_squares;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      if (begin + k >= args.sequences) continue;
      const PlanSequence own(args, begin + k);
      tiles[k] = own.tiles, squares[k] = own.squares, fits &= own.fits;
      own_tiles += own.tiles, own_squares += own.squares;
    }
    int64_t at = place + sum_before(own_tiles, of_warps, all_tiles);
    int64_t bias_at = of_bias + sum_before(own_squares, of_warps, all_squares);
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      write_pieces(args, begin + k, tiles[k], at, bias_at);
      at += tiles[k], bias_at += squares[k];
    }
    place += all_tiles, of_bias += all_squares;
  }
  fits = __syncthreads_and(fits);
  if (threadIdx.x == 0) write_item(args, 0, fits ? place : -1, 0, 0, 0);
  for (int64_t n = place + threadIdx.x; n < args.items; n += kThreads)
    write_item(args, 1 + n, -1, -1, -1, -1);
}

Tensor ragged_plan(const Tensor& offsets, int64_t max_total, int64_t max_batch, int64_t max_length) {
  const CudaOp op("ragged_plan", "offsets", offsets);
  return make_plan(op, offsets, max_total, max_batch, max_length,
                   [&](const PlanArgs& args) { op.launch(plan_kernel, 1, kThreads, 0, args); });
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("ragged_plan", TORCH_BOX(&mdops::ragged_plan));
}
