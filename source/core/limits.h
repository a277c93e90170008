// The limits of descriptors' places for neighbours.
#pragma once

#include <cstdint>
#include <vector>

namespace mdops::core {

// At most `count` in all of an atom's neighbours within a cutoff, counted from `first` on; of type t, or, t
// being -1, of all types.
struct Limit {
  int64_t first, count, places;
  int t;
};

// The limits of a descriptor whose counts begin at `first`; `mixed`: types share places.
inline void add_limits(bool mixed, const std::vector<int32_t>& sel, int64_t first, int ntypes,
                       std::vector<Limit>& to) {
  if (mixed) to.push_back({first, ntypes, sel[0], -1});
  for (int t = 0; !mixed && t < ntypes; ++t) to.push_back({first + t, 1, sel[t], t});
}

}  // namespace mdops::core
