// How many neighbours descriptors have places for.
#pragma once

#include <cstdint>
#include <vector>

namespace mdops::core {

// Of the counts of an atom's neighbours within a cutoff those from `first` on, `count` of them all together;
// of type t, or, t being -1, of all types.
struct Limit {
  int64_t first, count, places;
  int t;
};

// Those of a descriptor whose counts begin at `first`; `mixed`: places are of all types together.
inline void add_limits(bool mixed, const std::vector<int32_t>& sel, int64_t first, int ntypes,
                       std::vector<Limit>& to) {
  if (mixed) to.push_back({first, ntypes, sel[0], -1});
  for (int t = 0; !mixed && t < ntypes; ++t) to.push_back({first + t, 1, sel[t], t});
}

}  // namespace mdops::core
