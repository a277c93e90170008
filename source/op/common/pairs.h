// The pair list as ops.md lays it out: (N, K) neighbours and periodic images.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {

// One shift of a packed image: ten bits, two's complement.
MDOPS_HD int image_shift(int32_t image, int axis) {
  return static_cast<int32_t>(static_cast<uint32_t>(image) << (22 - 10 * axis)) >> 22;
}

// One component of displacement = x_j - x_i + (a, b, c) . cell
MDOPS_HD double displacement_component(double xi, double xj, const double* cell, int32_t image, int axis) {
  double d = xj - xi;
  if (image == 0) return d;
  for (int row = 0; row < 3; ++row) d += image_shift(image, row) * cell[3 * row + axis];
  return d;
}

MDOPS_HD void displacement(const double* xi, const double* xj, const double* cell, int32_t image, double* d) {
  for (int a = 0; a < 3; ++a) d[a] = displacement_component(xi[a], xj[a], cell, image, a);
}

}  // namespace mdops
