#include "common/parallel.h"
#include "degree_norm/ops.h"

namespace mdops {

constexpr int64_t kNormAtoms = 16;  // minimum atoms per piece

template <class T>
static void run_norm(const Op&, const NormArgs<T>& args) {
  parallel(args.atoms, kNormAtoms,
           [&](int64_t begin, int64_t end) { MDOPS_RUN(norm_atoms, args, begin, end); });
}

}  // namespace mdops

MDOPS_ON_CPU(DegreeNormOps)
