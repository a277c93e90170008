#include "edge_softmax/ops.h"

namespace mdops {

constexpr int64_t kSoftmaxAtoms = 8;  // minimum atoms per piece

template <class T>
static void run_edge_softmax(const Op&, const EdgeSoftmaxArgs<T>& args) {
  // Also the rows after the last atom's.
  parallel(args.atoms + 1, kSoftmaxAtoms,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(softmax_atoms, args, begin, end); });
  if (!args.grad) return;
  parallel(args.nodes, kSoftmaxAtoms,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(softmax_nodes, args, begin, end); });
}

}  // namespace mdops

MDOPS_ON_CPU(EdgeSoftmaxOps)
