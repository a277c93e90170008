#include "edge_environment/ops.h"

namespace mdops {

template <class T>
static void run_edge_environment(const Op&, const EdgeEnvironmentArgs<T>& args) {
  constexpr int64_t kPiece = 1024;  // minimum edges or slots
  const bool back = args.by_displacements != nullptr;
  parallel_each(back ? args.atoms * args.width : args.edges, kPiece,
                [&](int64_t n) { back ? args.run_slot(n) : args.run_edge(n); });
}

}  // namespace mdops

MDOPS_ON_CPU(EdgeEnvironmentOps)
