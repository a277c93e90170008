#include "common/parallel.h"
#include "scalar_gate/ops.h"

namespace mdops {

constexpr int64_t kGateAtoms = 16;  // a piece of work, at least

template <class T>
static void run_scalar_gate(const Op&, const ScalarGateArgs<T>& args) {
  parallel(args.atoms, kGateAtoms,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(gate_atoms, args, begin, end); });
}

}  // namespace mdops

MDOPS_ON_CPU(ScalarGateOps, RowGateOps)
