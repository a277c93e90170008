// A model's sizes, checked, for callers of the angle kernels. Nothing here uses PyTorch.
#pragma once

#include <string>

#include "angle_moment/angle_moment.h"

namespace mdops {

constexpr int64_t kMostAngleTypes = 1000, kMostAngleChannels = 100000;

// The reason if there is no such grid; else empty.
inline std::string angle_grid_refusal(int64_t exponent, int64_t octaves, int64_t fineness) {
  if (exponent >= -40 && exponent <= 40 && octaves >= 1 && octaves <= 60 && fineness >= 0 && fineness <= 12)
    return "";
  return "arguments `exponent`, `octaves` and `fineness` are " + std::to_string(exponent) + ", " +
         std::to_string(octaves) + " and " + std::to_string(fineness) +
         ", expected them in -40 .. 40, 1 .. 60 and 0 .. 12";
}

}  // namespace mdops
