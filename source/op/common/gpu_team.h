// Lanes as a team (common/team.h).
#pragma once

#include "common/gpu_warp.h"

namespace mdops {

// `Lanes` adjacent lanes of a warp, whose teams all do the same.
template <int kLanes>
struct LaneTeam {
  MDOPS_D void each(int64_t count, const auto& f) const {
    for (int64_t k = lane_index() % kLanes; k < count; k += kLanes) f(k);
  }
  template <class T>
  MDOPS_D T sum(T value) const {
    return warp_sum<kLanes>(value);
  }
  template <class T>
  MDOPS_D T max(T value) const {
    return join_lanes<kLanes>(value, [](T a, T b) { return a < b ? b : a; });
  }
};
using WarpTeam = LaneTeam<kWarp>;

}  // namespace mdops
