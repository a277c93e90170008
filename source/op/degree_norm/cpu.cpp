#include "common/team.h"
#include "degree_norm/ops.h"

namespace mdops {

constexpr int64_t kNormAtoms = 16;  // a piece of work, at least

template <class T>
static void run_norm(const Op&, const NormArgs<T>& args) {
  parallel(args.atoms, kNormAtoms, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) norm_atom(args, n, Alone());
  });
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  mdops::DegreeNormOps<mdops::OnCpu>::implement(m);
}
