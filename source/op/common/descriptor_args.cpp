#include "common/descriptor_args.h"

#include <limits>

namespace mdops {

DescriptorInputs::DescriptorInputs(const Op& op, const Tensor& displacements_, const Tensor& counts_,
                                   const Tensor& types_, const Tensor& std_, const Tensor& pair_mask_,
                                   double cutoff_, double cutoff_smooth_, double protection_)
    : displacements(float_input(op, "displacements", displacements_, {kAny, kAny, 3})),
      dtype(displacements.scalar_type()),
      atoms(displacements.size(0)),
      width(displacements.size(1)),
      cutoff(cutoff_),
      cutoff_smooth(cutoff_smooth_),
      protection(protection_) {
  counts = input(op, "counts", counts_, ScalarType::Int, {atoms, kAny});
  ntypes = counts.size(1);
  if (ntypes > std::numeric_limits<int>::max())
    fail(op, "argument `counts` has more types than 32 bits count");
  types = input(op, "types", types_, ScalarType::Int, {atoms});
  std = input(op, "std", std_, dtype, {ntypes, 2});
  pair_mask = input(op, "pair_mask", pair_mask_, ScalarType::Bool, {ntypes, ntypes});
  check_cutoff(op, cutoff, cutoff_smooth, protection);
  check_range(op, "types", types, -1, ntypes);
  check_counts(op, counts, width);
}

}  // namespace mdops
