#include "moment_invariants/ops.h"

namespace mdops {

constexpr int64_t kInvariantGrain = 64;  // atoms a piece of work, at least

MDOPS_IN_PIECES(run_invariants, invariants_forward, args.atoms, kInvariantGrain)

template <class T>
static void run_invariant_gradients(const Op&, const InvariantArgs<T>& args, const T* grad, T* by_scalars,
                                    T* by_others) {
  parallel(args.atoms, kInvariantGrain, [&](int64_t begin, int64_t end) {
    MDOPS_RUN(invariants_backward, args, grad, begin, end, by_scalars, by_others);
  });
}

}  // namespace mdops

MDOPS_ON_CPU(InvariantOps)
