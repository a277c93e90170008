#include "node_update/ops.h"

namespace mdops {

constexpr int64_t kUpdatedNodes = 64;  // a piece of work, at least

template <class T>
static void run_node_update(const Op&, const NodeUpdateArgs<T>& args) {
  if (!args.numbers) return;
  parallel(args.numbers / args.width, kUpdatedNodes, [&](int64_t begin, int64_t end) {
    with_activation(args.activation, [&]<Activation kind>() {
      const bool back = args.grad;
      for (int64_t n = begin; n < end; ++n)
        for (int64_t k = 0; k < args.width; ++k)
          back ? node_update_gradients<kind>(args, n * args.width + k, k)
               : update_node<kind>(args, n * args.width + k, k);
    });
  });
}

}  // namespace mdops

MDOPS_ON_CPU(NodeUpdateOps)
