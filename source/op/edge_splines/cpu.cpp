#include "edge_splines/ops.h"

namespace mdops {

constexpr int64_t kSplineEdges = 128;  // minimum edges per piece

MDOPS_IN_PIECES(run_edge_splines, EdgeSplineArgs, edge_spline_rows, args.edges, kSplineEdges)

}  // namespace mdops

MDOPS_ON_CPU(EdgeSplineOps)
