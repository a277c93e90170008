#include "order_mix/mix.h"
#include "order_mix/ops.h"

namespace mdops {

constexpr int64_t kMixEdges = 256;  // a piece of work, at least

template <class T>
static void run_orders(const Op&, const OrderMixArgs<T>& args) {
  parallel(args.shape.edges, kMixEdges,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(mix_rows, args, begin, end); });
}

template <class T>
static void run_orders(const Op&, const OrderOuterArgs<T>& args) {
  parallel(args.shape.edges, kMixEdges,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(outer_numbers, args, begin, end); });
}

MDOPS_INSTANTIATE_OF(mix_orders, Op, OrderMixArgs)
MDOPS_INSTANTIATE_OF(mix_orders, Op, OrderOuterArgs)

}  // namespace mdops

MDOPS_ON_CPU(OrderMixOps)
