// Sums of a vector's lanes in registers, for one instruction set.
#pragma once

#include <utility>

#include "common/vectors.h"

namespace mdops::MDOPS_ISA {

template <int H, class V, int... Lane>
MDOPS_INLINE auto sum_halves(const V& v, std::integer_sequence<int, Lane...> all) {
  const V sum = v + MDOPS_SHUFFLE(decltype(v == v), v, v, (Lane ^ H)...);
  if constexpr (H > 1)
    return sum_halves<H / 2>(sum, all);
  else
    return sum[0];
}

// Same bits as `sum_lanes`, whose parts of the vector go through memory.
template <class T>
MDOPS_INLINE T sum_in_registers(const Vector<T>& v) {
  return sum_halves<kLanes<T> / 2>(v, std::make_integer_sequence<int, kLanes<T>>());
}

}  // namespace mdops::MDOPS_ISA
