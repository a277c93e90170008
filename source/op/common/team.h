// Who works on the numbers of an atom, as formulas that both devices share see it: `each(count, f)` calls
// f(k) for k < count, each by one member of the team, and `sum` and `max` give all of them what they have
// together. Here one that is alone; common/gpu_team.h has a warp.
#pragma once

#include <cstdint>

namespace mdops {

struct Alone {
  template <class F>
  void each(int64_t count, const F& f) const {
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
