#include "edge_splines/ops.h"

namespace mdops {

constexpr int64_t kSplineEdges = 128;  // a piece of work, at least

template <class T>
static void run_edge_splines(const Op&, const EdgeSplineArgs<T>& args) {
  parallel(args.edges, kSplineEdges,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(edge_spline_rows, args, begin, end); });
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::EdgeSplineOps<mdops::OnCpu>::implement(m);
}
