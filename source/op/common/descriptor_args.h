// The arguments that every descriptor op takes.
#pragma once

#include <limits>

#include "common/checked.h"
#include "common/cutoff.h"

namespace mdops {

// What several ops take together.
struct PairTensors {
  const Tensor &displacements, &counts, &types;
  using Parts = TensorParts<3>;
  operator Input() const { return displacements; }  // which has the op's type
};
struct CutoffNumbers {
  double cutoff, cutoff_smooth, protection;
  using Parts = TypeList<double, double, double>;

  // Checks them, and converts them for kernels.
  void take(const Op& op, auto& to) const {
    using T = decltype(to.cutoff);
    check_cutoff(op, cutoff, cutoff_smooth, protection);
    to = {static_cast<T>(cutoff), static_cast<T>(cutoff_smooth), static_cast<T>(protection)};
  }
};

// Converts them for kernels, and returns the number of atoms.
int64_t take_descriptor(auto& in, auto& a, const bool*& mask, const PairTensors& pairs, Input std,
                        Input pair_mask, const CutoffNumbers& cutoff) {
  in.take(a.displacements, "displacements", pairs.displacements, {kAny, kAny, 3});
  const int64_t atoms = pairs.displacements.size(0);
  in.take(a.counts, "counts", pairs.counts, {atoms, kAny});
  const int64_t ntypes = pairs.counts.size(1);
  if (ntypes > std::numeric_limits<int>::max())
    fail(in.op, "argument `counts` has more types than 32 bits count");
  a.width = pairs.displacements.size(1), a.ntypes = static_cast<int>(ntypes);
  in.take_range(a.types, "types", pairs.types, {atoms}, -1, ntypes);
  in.take(a.std, "std", std, {ntypes, 2});
  in.take(mask, "pair_mask", pair_mask, {ntypes, ntypes});
  cutoff.take(in.op, a.cutoff);
  check_counts(in.op, a.counts, atoms, ntypes, a.width);
  return atoms;
}

}  // namespace mdops
