#include "scalar_gate/ops.h"

namespace mdops {

constexpr int64_t kGateAtoms = 16;  // a piece of work, at least

MDOPS_IN_PIECES(run_scalar_gate, ScalarGateArgs, gate_atoms, args.atoms, kGateAtoms)

}  // namespace mdops

MDOPS_ON_CPU(ScalarGateOps, RowGateOps)
