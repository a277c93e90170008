#include "moment_invariants/ops.h"

namespace mdops {

constexpr int64_t kInvariantGrain = 64;  // atoms a piece of work, at least

MDOPS_IN_PIECES(run_invariants, InvariantArgs, invariants_forward, args.atoms, kInvariantGrain)
MDOPS_IN_PIECES(run_invariant_gradients, InvariantArgs, invariants_backward, args.atoms, kInvariantGrain)

}  // namespace mdops

MDOPS_ON_CPU(InvariantOps)
