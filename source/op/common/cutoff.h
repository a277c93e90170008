// A check of a descriptor's cutoff in bindings. Nothing here uses PyTorch.
#pragma once

#include <cmath>

#include "common/op.h"

namespace mdops {

// Refuses cutoffs unless cutoff_smooth < cutoff, cutoff > 0, protection >= 0, all finite; A.
inline void check_cutoff(const Op& op, double cutoff, double cutoff_smooth, double protection) {
  if (!(cutoff > 0) || !std::isfinite(cutoff) || !(cutoff_smooth < cutoff) || !std::isfinite(cutoff_smooth))
    fail(op, "arguments `cutoff` and `cutoff_smooth` are ", cutoff, " and ", cutoff_smooth,
         " A, expected cutoff > 0 and cutoff_smooth < cutoff");
  if (!(protection >= 0) || !std::isfinite(protection))
    fail(op, "argument `protection` is ", protection, " A, expected a number >= 0");
}

}  // namespace mdops
