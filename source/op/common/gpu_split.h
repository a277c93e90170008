// A float32 number as the sum of two TF32 numbers.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {

// Two parts of a number for the tensor cores, which drop one of the low part's 12 bits and sign. By Dekker's
// splitting (doi.org/10.1007/BF01397083), because conversions to TF32 take many instructions.
struct Split {
  uint32_t high, low;
};

MDOPS_D Split split(float x) {
  const float scaled = __fmul_rn(x, 8193.f), high = __fsub_rn(scaled, __fsub_rn(scaled, x));
  return {__float_as_uint(high), __float_as_uint(__fsub_rn(x, high))};
}

}  // namespace mdops
