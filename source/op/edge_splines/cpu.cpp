#include <algorithm>

#include "edge_splines/ops.h"

namespace mdops {

namespace {

constexpr int64_t kSplineEdges = 128;  // a piece of work, at least

template <class T>
void value_row(const EdgeSplineArgs<T>& args, int64_t e) {
  T* __restrict const y = args.out + e * args.functions;
  std::fill(y, y + args.functions, T(0));
  if (args.is_none(e)) return;
  const EdgeSpline<T> spline(args, e, false);
  for (int b = 0; b < kSplineSupport; ++b) {
    const T weight = spline.weights[b], *const row = spline.rows + b * args.functions;
    for (int64_t p = 0; p < args.functions; ++p) y[p] += weight * row[p];
  }
}

template <class T>
T slope_sum(const EdgeSplineArgs<T>& args, int64_t e) {
  if (args.is_none(e)) return T(0);
  const EdgeSpline<T> spline(args, e, true);
  const T* const grad = args.grad + e * args.functions;
  T sum = 0;
  for (int b = 0; b < kSplineSupport; ++b) {
    const T* const row = spline.rows + b * args.functions;
    T of_row = 0;
    for (int64_t p = 0; p < args.functions; ++p) of_row += grad[p] * row[p];
    sum += spline.weights[b] * of_row;
  }
  return sum;
}

}  // namespace

template <class T>
static void run_edge_splines(const Op&, const EdgeSplineArgs<T>& args) {
  parallel(args.edges, kSplineEdges, [&](int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) {
      if (args.grad)
        args.out[e] = slope_sum(args, e);
      else
        value_row(args, e);
    }
  });
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::EdgeSplineOps<mdops::OnCpu>::implement(m);
}
