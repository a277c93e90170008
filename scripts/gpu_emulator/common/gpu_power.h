// Replaces source/op/common/gpu_power.h: powers of two on the emulated GPU.
#pragma once

#include <cmath>

namespace mdops {

inline float power_of_two(float x) {
  return std::exp2(x);
}

}  // namespace mdops
