// The switch w between two distances, with u = (r - begin) / (end - begin), and its derivatives by r:
//
//   w = (1 - u)^3 (6 u^2 + 3 u + 1), 1 before and 0 behind        w' = -30 u^2 (1 - u)^2 / (end - begin), ...
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {

template <class T>
struct SwitchArgs {
  int64_t count;
  T begin, end;
  int64_t order;  // of the derivative
  const T* r;
  T* out;

  MDOPS_HD void run(int64_t k) const {
    const T x = r[k], width = end - begin;
    if (order > 0 && (x < begin || x > end)) {  // NaN is neither
      out[k] = 0;
      return;
    }
    const T u = ((x < begin ? begin : x > end ? end : x) - begin) / width, v = T(1) - u;
    T value = v * v * v * ((T(6) * u + T(3)) * u + T(1));
    if (order == 1) value = T(-30) * u * u * v * v;
    if (order == 2) value = T(-60) * u * v * (v - u);
    if (order == 3) value = T(-60) * (T(1) - T(6) * u * v);
    if (order == 4) value = T(360) * (v - u);
    if (order == 5) value = T(-720) + T(0) * u;
    if (order > 5) value = T(0) * u;
    for (int64_t n = 0; n < order; ++n) value /= width;
    out[k] = value;
  }
};

}  // namespace mdops
