// Nested loops over numbers in a thread's registers.
#pragma once

#include "common/math.h"

namespace mdops {

// Calls f(a, b, ...) for all a < A, b < B, ... in the order of nested loops. They are unrolled, so f may take
// its arguments as indices of arrays in registers.
template <int Count, int... More, class F>
MDOPS_D void unrolled(const F& f) {
#pragma unroll
  for (int k = 0; k < Count; ++k) {
    if constexpr (sizeof...(More) > 0)
      unrolled<More...>([&](auto... others) { f(k, others...); });
    else
      f(k);
  }
}

}  // namespace mdops
