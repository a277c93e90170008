// Rows of numbers in memory, and in panels: for one instruction set.
#pragma once

#include <algorithm>
#include <cstring>

#include "common/panels.h"

namespace mdops::MDOPS_ISA {

// Rows of numbers to panels, zeros in the other lanes.
template <class T>
inline void rows_to_panels(const T* from, int64_t rows, int64_t count, const Panels<T>& to) {
  to.each([&](auto place) {
    const int64_t left = std::clamp<int64_t>(count - place.lane(), 0, kLanes<T>);
    for (int64_t r = 0; r < rows; ++r) {
      Vector<T> v{};
      if (left == kLanes<T>)
        v = vector_at(from + r * count + place.lane());
      else
        std::memcpy(&v, from + r * count + place.lane(), left * sizeof(T));
      store(place.in(to, r), v);
    }
  });
}

// The first `count` numbers of rows in panels.
template <class T>
inline void panels_to_rows(const Panels<T>& from, int64_t rows, int64_t count, T* to) {
  from.each([&](auto place) {
    const int64_t left = std::clamp<int64_t>(count - place.lane(), 0, kLanes<T>);
    for (int64_t r = 0; r < rows; ++r)
      if (left == kLanes<T>)
        store(to + r * count + place.lane(), vector_at(place.in(from, r)));
      else
        std::memcpy(to + r * count + place.lane(), place.in(from, r), left * sizeof(T));
  });
}

// Whether rows of this size have the same layout in memory and in panels.
template <class T>
inline bool are_panels(int64_t width) {
  return width % kLanes<T> == 0 && width <= Panels<T>::kWide;
}

}  // namespace mdops::MDOPS_ISA
