// The arguments that every descriptor op takes.
#pragma once

#include <limits>

#include "common/checked.h"
#include "common/cutoff.h"

namespace mdops {

// Converts them for kernels, and returns the number of atoms.
int64_t take_descriptor(auto& in, auto& a, const bool*& mask, Input displacements, Input counts, Input types,
                        Input std, Input pair_mask, double cutoff, double cutoff_smooth, double protection) {
  in.take(a.displacements, "displacements", displacements, {kAny, kAny, 3});
  const int64_t atoms = displacements.size(0);
  in.take(a.counts, "counts", counts, {atoms, kAny});
  const int64_t ntypes = counts.size(1);
  if (ntypes > std::numeric_limits<int>::max())
    fail(in.op, "argument `counts` has more types than 32 bits count");
  a.width = displacements.size(1), a.ntypes = static_cast<int>(ntypes);
  in.take_range(a.types, "types", types, {atoms}, -1, ntypes);
  in.take(a.std, "std", std, {ntypes, 2});
  in.take(mask, "pair_mask", pair_mask, {ntypes, ntypes});
  check_cutoff(in.op, cutoff, cutoff_smooth, protection);
  check_counts(in.op, a.counts, atoms, ntypes, a.width);
  using T = std::remove_cvref_t<decltype(*a.displacements)>;
  a.cutoff = {static_cast<T>(cutoff), static_cast<T>(cutoff_smooth), static_cast<T>(protection)};
  return atoms;
}

}  // namespace mdops
