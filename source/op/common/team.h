// The workers on an atom, for formulas that both devices share: `each(count, f)` calls f(k) for k < count,
// each in one member of the team, and `sum` and `max` return the total over members to all. Here a single
// worker; common/gpu_team.h has a warp.
#pragma once

#include <cstdint>

namespace mdops {

struct Alone {
  void each(int64_t count, const auto& f) const {
    for (int64_t k = 0; k < count; ++k) f(k);
  }
  template <class T>
  T sum(T value) const {
    return value;
  }
  template <class T>
  T max(T value) const {
    return value;
  }
};

}  // namespace mdops
