#include "order_mix/ops.h"

namespace mdops {

constexpr int64_t kMixEdges = 256;  // a piece of work, at least

MDOPS_IN_PIECES(run_orders, OrderMixArgs, mix_rows, args.shape.edges, kMixEdges)
MDOPS_IN_PIECES(run_orders, OrderOuterArgs, outer_numbers, args.shape.edges, kMixEdges)

MDOPS_INSTANTIATE_OF(mix_orders, Op, OrderMixArgs)
MDOPS_INSTANTIATE_OF(mix_orders, Op, OrderOuterArgs)

}  // namespace mdops

MDOPS_ON_CPU(OrderMixOps)
