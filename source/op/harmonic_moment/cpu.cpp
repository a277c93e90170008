#include "displacements/cpu_loops.h"
#include "harmonic_moment/ops.h"

namespace mdops {

constexpr int64_t kHarmonicGrain = 8;  // atoms a piece of work, at least

template <class T>
static void run_harmonic_sums(const Op&, const HarmonicMomentArgs<T>& args, const HarmonicSumArgs<T>& sums,
                              const HarmonicSums<T>& out) {
  parallel(args.atoms, kHarmonicGrain, [&](int64_t begin, int64_t end) {
    MDOPS_RUN(harmonic_sums_forward, args, sums, begin, end, out);
  });
}

template <class T>
static void run_harmonic_sum_gradients(const Op&, const HarmonicMomentArgs<T>& args,
                                       const HarmonicSumArgs<T>& sums, const T* by_first, const T* by_second,
                                       T* pair_grad) {
  parallel(args.atoms, kHarmonicGrain, [&](int64_t begin, int64_t end) {
    MDOPS_RUN(harmonic_sums_backward, args, sums, by_first, by_second, begin, end, pair_grad);
  });
}

template <class T>
static void run_harmonic_forces(const Op& op, const HarmonicMomentArgs<T>& args,
                                const HarmonicSumArgs<T>& sums, const HarmonicForceArgs<T>& of) {
  Tensor grad = empty(op, {args.atoms, args.width, 3}, kDtype<T>);
  run_harmonic_sum_gradients<T>(op, args, sums, of.by_first, of.by_second, data_of(grad));
  sum_pair_forces<T>(of.rows, data_of(grad), args.displacements, of.forces, of.virial, nullptr);
}

}  // namespace mdops

MDOPS_ON_CPU(HarmonicSumOps)
