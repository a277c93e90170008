// Loops over tiles of a compile-time size: for one instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/math.h"

namespace mdops::MDOPS_ISA {

template <int Most, class F>
MDOPS_INLINE void with_count(int64_t count, const F& f) {
  if (count == Most) return f(std::integral_constant<int, Most>{});
  if constexpr (Most > 1) with_count<Most - 1>(count, f);
}

// Calls f(first, count) for tiles of at most kTile, as even as possible.
template <int kTile, class F>
MDOPS_INLINE void each_tile(int64_t count, const F& f) {
  const int64_t tiles = (count + kTile - 1) / kTile;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t first = count * tile / tiles;
    with_count<kTile>(count * (tile + 1) / tiles - first, [&](auto size) { f(first, size); });
  }
}

}  // namespace mdops::MDOPS_ISA
