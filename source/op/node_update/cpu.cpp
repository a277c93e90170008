#include "node_update/ops.h"

namespace mdops {

constexpr int64_t kUpdatedNodes = 64;  // a piece of work, at least

// make.operator()<kind>(number, column) of each number.
template <class T, class F>
static void for_node_numbers(const NodeUpdateArgs<T>& args, const F& make) {
  if (!args.numbers) return;
  parallel(args.numbers / args.width, kUpdatedNodes, [&](int64_t begin, int64_t end) {
    with_activation(args.activation, [&]<Activation kind>() {
      for (int64_t n = begin; n < end; ++n)
        for (int64_t k = 0; k < args.width; ++k) make.template operator()<kind>(n * args.width + k, k);
    });
  });
}

template <class T>
static void run_node_update(const Op&, const NodeUpdateArgs<T>& args) {
  for_node_numbers(args, [&]<Activation kind>(int64_t k, int64_t c) { update_node<kind>(args, k, c); });
}

template <class T>
static void run_node_update_gradients(const Op&, const NodeUpdateArgs<T>& args) {
  for_node_numbers(args,
                   [&]<Activation kind>(int64_t k, int64_t c) { node_update_gradients<kind>(args, k, c); });
}

}  // namespace mdops

MDOPS_ON_CPU(NodeUpdateOps)
