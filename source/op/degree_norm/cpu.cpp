#include "degree_norm/ops.h"

namespace mdops {

constexpr int64_t kNormAtoms = 16;  // minimum atoms per piece

MDOPS_IN_PIECES(run_norm, NormArgs, norm_atoms, args.atoms, kNormAtoms)

}  // namespace mdops

MDOPS_ON_CPU(DegreeNormOps)
