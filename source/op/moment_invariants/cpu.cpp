#include "common/parallel.h"
#include "moment_invariants/ops.h"

namespace mdops {

constexpr int64_t kInvariantGrain = 64;  // atoms a piece of work, at least

template <class T>
static void run_invariants(const Op&, const InvariantArgs<T>& args, T* out) {
  parallel(args.atoms, kInvariantGrain,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(invariants_forward, args, begin, end, out); });
}

template <class T>
static void run_invariant_gradients(const Op&, const InvariantArgs<T>& args, const T* grad, T* by_scalars,
                                    T* by_others) {
  parallel(args.atoms, kInvariantGrain, [&](int64_t begin, int64_t end) {
    MDOPS_RUN(invariants_backward, args, grad, begin, end, by_scalars, by_others);
  });
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::InvariantOps<mdops::OnCpu>::implement(m);
}
