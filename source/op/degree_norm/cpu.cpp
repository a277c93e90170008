#include "common/team.h"
#include "degree_norm/ops.h"

namespace mdops {

constexpr int64_t kNormAtoms = 16;  // a piece of work, at least

template <class T>
static void run_norm(const Op&, const NormArgs<T>& args) {
  parallel_each(args.atoms, kNormAtoms, [&](int64_t n) { norm_atom(args, n, Alone()); });
}

}  // namespace mdops

MDOPS_ON_CPU(DegreeNormOps)
