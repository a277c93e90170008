// The kernels of softmax over segments: a warp per segment and column. A wrong one has NaN in its rows.
#pragma once

#include <math_constants.h>

#include "common/gpu.h"
#include "common/gpu_team.h"
#include "common/rows.h"
#include "graph/segment_weights.h"
#include "graph/softmax.h"

namespace mdops::gpu_softmax {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;

template <class T>
MDOPS_D void fill(const SoftmaxArgs<T>& args, int64_t at, T value) {
  args.of_x[at] = value;
  if (args.of_grad) args.of_grad[at] = value;
}

// Fills between the offsets of a wrong segment.
template <class T>
__device__ void spoil(const SoftmaxArgs<T>& args, int64_t segment, int64_t column) {
  const int64_t a = args.offsets[segment], b = args.offsets[segment + 1];
  const int64_t first = max(min(a, b), int64_t{0}), last = min(max(a, b), args.rows);
  for (int64_t e = first + lane_index(); e < last; e += kWarp)
    fill(args, e * args.columns + column, not_a_number<T>());
}

template <class T>
__global__ void __launch_bounds__(kThreads) softmax_kernel(SoftmaxArgs<T> args) {
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int64_t segment = warp / args.columns, column = warp % args.columns;
  if (segment >= args.segments) return;
  if (!args.fits(segment)) return spoil(args, segment, column);
  const int64_t begin = args.offsets[segment] + lane_index(), end = args.offsets[segment + 1];
  T max = static_cast<T>(-CUDART_INF_F);
  for (int64_t e = begin; e < end; e += kWarp) {
    const T x = args.x[e * args.columns + column];
    max = max < x ? x : max;
  }
  max = join_lanes(max, [](T a, T b) { return a < b ? b : a; });
  SoftmaxSums<T> sums;
  for (int64_t e = begin; e < end; e += kWarp) sums.add(args, e * args.columns + column, max);
  sums.one = warp_sum(sums.one);
  if (args.grad) sums.s = warp_sum(sums.s);
  if (args.direction) sums.t = warp_sum(sums.t), sums.q = warp_sum(sums.q);
  sums.normalize();
  for (int64_t e = begin; e < end; e += kWarp) sums.write(args, e * args.columns + column, max);
}

// Rows of no segment: zeros after the last. There are none before the first.
template <class T>
__global__ void __launch_bounds__(kThreads) rest_kernel(SoftmaxArgs<T> args) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= args.rows * args.columns) return;
  const int64_t first = args.offsets[0], last = args.offsets[args.segments];
  if (last < 0 || at < first * args.columns)
    fill(args, at, not_a_number<T>());
  else if (at >= last * args.columns)
    fill(args, at, T(0));
}

// A warp per segment and column, and a thread per number of rows of no segment.
template <class T>
__global__ void __launch_bounds__(kThreads) weights_kernel(SegmentWeightArgs<T> args, unsigned blocks) {
  if (blockIdx.x >= blocks) {
    const int64_t at = static_cast<int64_t>(blockIdx.x - blocks) * kThreads + threadIdx.x;
    const int64_t first = args.offsets[0], last = args.offsets[args.segments];
    if (at >= args.rows * args.columns) return;
    if (last < 0 || at < first * args.columns)
      args.fill(at, not_a_number<T>());
    else if (at >= last * args.columns)
      args.fill(at, T(0));
    return;
  }
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  const int64_t segment = warp / args.columns, column = warp % args.columns;
  if (segment >= args.segments) return;
  if (args.fits(segment)) return weigh_segment(args, segment, column, WarpTeam());
  const int64_t a = args.offsets[segment], b = args.offsets[segment + 1];
  const int64_t first = max(min(a, b), int64_t{0}), end = min(max(a, b), args.rows);
  for (int64_t e = first + lane_index(); e < end; e += kWarp)
    args.fill(e * args.columns + column, not_a_number<T>());
  if (args.by_nothing && lane_index() == 0) args.by_nothing[warp] = not_a_number<T>();
}

template <class T>
void run_graph(const Gpu& gpu, const SegmentWeightArgs<T>& args) {
  const auto own = static_cast<unsigned>((args.segments * args.columns + kWarps - 1) / kWarps);
  const auto rest = static_cast<unsigned>((args.rows * args.columns + kThreads - 1) / kThreads);
  if (own + rest > 0) gpu.launch(weights_kernel<T>, own + rest, kThreads, 0, args, own);
}

template <class T>
void run_graph(const Gpu& gpu, const SoftmaxArgs<T>& args) {
  gpu.launch_for(args.rows * args.columns, kThreads, rest_kernel<T>, args);
  gpu.launch(softmax_kernel<T>, blocks_for(args.segments * args.columns, kWarps), kThreads, 0, args);
}

}  // namespace mdops::gpu_softmax

namespace mdops {
using gpu_softmax::run_graph;
}
