#include "axis_product/ops.h"

namespace mdops {

constexpr int64_t kProductAtoms = 16;  // that a thread processes at once

MDOPS_IN_PIECES(run_axis_features, AxisArgs, axis_features, args.atoms, kProductAtoms)
MDOPS_IN_PIECES(run_axis_gradients, AxisArgs, axis_gradients, args.atoms, kProductAtoms)

}  // namespace mdops

MDOPS_ON_CPU(AxisProductOps)
