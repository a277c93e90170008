// Powers of two of float32 by one instruction, to two units in the last place.
#pragma once

#include "common/math.h"

namespace mdops {

MDOPS_D float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace mdops
