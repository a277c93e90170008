// A descriptor's places for neighbours: DeePMD-kit fills unused ones with absent neighbours, which count.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {

struct Places {
  const bool* pair_mask;   // (ntypes, ntypes): pairs of types whose rows are zero
  const bool* zeroed;      // (ntypes, ntypes): of those, the ones that take places all the same
  const int32_t* sel;      // (ntypes,): places for each type; or (1,) where all types share them
  const int32_t* padding;  // (N,): the type of absent neighbours if types share places; null otherwise
  int ntypes;
  // (N, ntypes): the absent neighbours of each type, if counted elsewhere; null otherwise.
  const int32_t* absent = nullptr;

  MDOPS_HD bool masked(int type, int t) const { return pair_mask[type * ntypes + t]; }

  // Whether neighbours of type t have rows of zeros, and fill places.
  MDOPS_HD bool zero(int type, int t) const { return masked(type, t) && zeroed[type * ntypes + t]; }

  // How many of `within` neighbours of type t fill places of a centre.
  MDOPS_HD int taken(int type, int t, int within) const {
    return masked(type, t) && !zero(type, t) ? 0 : within;
  }

  // How many shared places are empty if `all_taken` are filled.
  MDOPS_HD int empty(int all_taken) const { return sel[0] > all_taken ? sel[0] - all_taken : 0; }

  // How many of atom i's `within` neighbours of type t have rows of zeros.
  MDOPS_HD int zeros(int64_t i, int t, int within) const {
    return absent ? sel[t] - absent[i * ntypes + t] : within;
  }

  // Calls add(t, count) for the absent neighbours of atom i, which has within[t] neighbours of each type. The
  // count is negative if a type has more neighbours than places.
  MDOPS_HD void each_absent(int64_t i, int type, const int32_t* within, const auto& add) const;
};

// The same, type by type: of() for each type in turn, then end().
struct AbsentNeighbors {
  const Places& places;
  int64_t i;
  int type;
  int all_taken = 0;

  MDOPS_HD void of(int t, int within, const auto& add) {
    if (places.absent) {
      if (const int count = places.absent[i * places.ntypes + t]; count != 0) add(t, count);
      return;
    }
    const int n = places.taken(type, t, within);
    all_taken += n;
    if (!places.padding && places.sel[t] != n) add(t, places.sel[t] - n);
  }

  MDOPS_HD void end(const auto& add) const {
    if (places.absent || !places.padding) return;
    if (const int count = places.empty(all_taken); count > 0) add(places.padding[i], count);
  }
};

MDOPS_HD void Places::each_absent(int64_t i, int type, const int32_t* within, const auto& add) const {
  AbsentNeighbors neighbors{*this, i, type};
  for (int t = 0; t < ntypes; ++t) neighbors.of(t, within[t], add);
  neighbors.end(add);
}

}  // namespace mdops
