// Splines of lengths on a GPU: an edge has half as many lanes as vectors of functions, up to half a warp.
// Each lane computes its edge's weights.
#pragma once

#include "common/gpu_unroll.h"
#include "edge_splines/edge_splines.h"
#include "graph/gpu_rows.h"

namespace mdops::gpu_edge_splines {

template <class T, int size>
MDOPS_D Vector<T, size> value_at(const EdgeSpline<T>& spline, int64_t functions, int64_t p) {
  Vector<T, size> sum;
  unrolled<kSplineSupport>(
      [&](int b) { sum += spline.weights[b] * Vector<T, size>(spline.rows + b * functions + p); });
  return sum;
}

template <class T, int size>
__global__ void __launch_bounds__(kRowThreads) value_kernel(const EdgeSplineArgs<T> args, int lanes) {
  const RowOfLanes place(lanes);
  const int64_t e = place.row;
  if (e >= args.edges) return;
  const bool right = args.is_right(e);
  T* const y = args.out + e * args.functions;
  if (!right || args.is_none(e)) {
    const auto same = Vector<T, size>::all(right ? T(0) : not_a_number<T>());
    for (int64_t p = place.first * size; p < args.functions; p += place.step * size) same.store(y + p);
    return;
  }
  const EdgeSpline<T> spline(args, e, false);
  for (int64_t p = place.first * size; p < args.functions; p += place.step * size)
    value_at<T, size>(spline, args.functions, p).store(y + p);
}

// All lanes of a warp take part in the sums.
template <class T, int size>
__global__ void __launch_bounds__(kRowThreads) slope_kernel(const EdgeSplineArgs<T> args, int lanes) {
  const RowOfLanes place(lanes);
  const int64_t e = place.row;
  const bool there = e < args.edges, right = there && args.is_right(e);
  T sum = 0;
  if (right && !args.is_none(e)) {
    const EdgeSpline<T> spline(args, e, true);
    for (int64_t p = place.first * size; p < args.functions; p += place.step * size) {
      const auto slope = value_at<T, size>(spline, args.functions, p);
      const Vector<T, size> grad(args.grad + e * args.functions + p);
      unrolled<size>([&](int k) { sum += grad[k] * slope[k]; });
    }
  }
  for (int step = place.step / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (there && !place.first) args.out[e] = right ? sum : not_a_number<T>();
}

template <class T>
void run_edge_splines(const Gpu& gpu, const EdgeSplineArgs<T>& args) {
  with_row_lanes<T>(args.functions, 0, [&]<int size>(int all) {
    const int lanes = all > 0 ? all - 1 : 0;
    gpu.launch_for(args.edges << lanes, kRowThreads,
                   args.grad ? slope_kernel<T, size> : value_kernel<T, size>, args, lanes);
  });
}

}  // namespace mdops::gpu_edge_splines

namespace mdops {
using gpu_edge_splines::run_edge_splines;
}
