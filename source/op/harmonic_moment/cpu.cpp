#include "displacements/cpu_loops.h"
#include "harmonic_moment/ops.h"

namespace mdops {

constexpr int64_t kHarmonicGrain = 8;  // atoms a piece of work, at least

MDOPS_IN_PIECES(run_harmonic_sums, HarmonicMomentArgs, harmonic_sums_forward, args.atoms, kHarmonicGrain)
MDOPS_IN_PIECES(run_harmonic_sum_gradients, HarmonicMomentArgs, harmonic_sums_backward, args.atoms,
                kHarmonicGrain)

template <class T>
static void run_harmonic_forces(const Op& op, const HarmonicMomentArgs<T>& args,
                                const HarmonicSumArgs<T>& sums, const HarmonicForceArgs<T>& of) {
  Tensor grad = empty(op, {args.atoms, args.width, 3}, kDtype<T>);
  run_harmonic_sum_gradients<T>(op, args, sums, of.by_first, of.by_second, data_of(grad));
  sum_pair_forces<T>(of.rows, data_of(grad), args.displacements, of.forces, of.virial, nullptr);
}

}  // namespace mdops

MDOPS_ON_CPU(HarmonicSumOps)
