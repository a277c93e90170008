#include <algorithm>

#include "common/scratch.h"
#include "order_moments/ops.h"

namespace mdops {

constexpr int64_t kMomentNodes = 4;  // a piece of work, at least

template <class T>
static void run_order_moments(const Op& op, const OrderMomentArgs<T>& args) {
  struct Use;
  const OrderMomentShape& shape = args.shape;
  const int64_t scratch = MDOPS_RUN(order_moment_scratch, args);
  parallel(shape.nodes, kMomentNodes, [&](int64_t begin, int64_t end) {
    const ScratchMemory<Use> memory(op, scratch);
    MDOPS_RUN(order_moments_of, args, begin, end, memory.data());
  });
  for (int64_t e = 0; args.grad && e < shape.edges; ++e) {
    if (!args.is_none(e)) continue;
    std::fill_n(args.by_turn + e * shape.matrix(), shape.matrix(), T(0));
    std::fill_n(args.by_y + e * shape.numbers(), shape.numbers(), T(0));
    std::fill_n(args.by_weight + e * shape.groups, shape.groups, T(0));
  }
}

}  // namespace mdops

MDOPS_ON_CPU(OrderMomentOps)
