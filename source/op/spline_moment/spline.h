// The uniform quintic B-spline basis: six functions are non-zero at any s.
// Source: de Boor, A Practical Guide to Splines, ch. IX, written out for uniform knots.
#pragma once

#include "common/math.h"

namespace mdops {

constexpr int kSplineSupport = 6;

// Values, and first and second derivatives, at t in [0, 1] of the six functions of one interval.
template <class T>
MDOPS_HD void spline_values(T t, T* w) {
  const T c = T(1) / T(120), t2 = t * t, t3 = t2 * t, t4 = t2 * t2, t5 = t4 * t;
  const T o = T(1) - t, o2 = o * o;
  w[0] = o2 * o2 * o * c;
  w[1] = (T(26) - T(50) * t + T(20) * t2 + T(20) * t3 - T(20) * t4 + T(5) * t5) * c;
  w[2] = (T(66) - T(60) * t2 + T(30) * t4 - T(10) * t5) * c;
  w[3] = (T(26) + T(50) * t + T(20) * t2 - T(20) * t3 - T(20) * t4 + T(10) * t5) * c;
  w[4] = (T(1) + T(5) * t + T(10) * t2 + T(10) * t3 + T(5) * t4 - T(5) * t5) * c;
  w[5] = t5 * c;
}

template <class T>
MDOPS_HD void spline_slopes(T t, T* w) {
  const T c = T(1) / T(24), t2 = t * t, t3 = t2 * t, t4 = t2 * t2;
  const T o = T(1) - t, o2 = o * o;
  w[0] = -o2 * o2 * c;
  w[1] = (T(-10) + T(8) * t + T(12) * t2 - T(16) * t3 + T(5) * t4) * c;
  w[2] = (T(-24) * t + T(24) * t3 - T(10) * t4) * c;
  w[3] = (T(10) + T(8) * t - T(12) * t2 - T(16) * t3 + T(10) * t4) * c;
  w[4] = (T(1) + T(4) * t + T(6) * t2 + T(4) * t3 - T(5) * t4) * c;
  w[5] = t4 * c;
}

template <class T>
MDOPS_HD void spline_curvatures(T t, T* w) {
  const T c = T(1) / T(6), t2 = t * t, t3 = t2 * t;
  const T o = T(1) - t;
  w[0] = o * o * o * c;
  w[1] = (T(2) + T(6) * t - T(12) * t2 + T(5) * t3) * c;
  w[2] = (T(-6) + T(18) * t2 - T(10) * t3) * c;
  w[3] = (T(2) - T(6) * t - T(12) * t2 + T(10) * t3) * c;
  w[4] = (T(1) + T(3) * t + T(3) * t2 - T(5) * t3) * c;
  w[5] = t3 * c;
}

// Knots on [0, s_max] in `intervals` pieces, intervals + 5 basis functions.
template <class T>
struct SplineGrid {
  T inv_step;
  int intervals;
};

// The place of s: its interval and t in it, and how far s lies beyond s_max in steps (0 inside). Beyond s_max
// the spline goes on along its tangent.
template <class T>
struct SplinePlace {
  int interval;
  T t, beyond;
};

template <class T>
MDOPS_HD SplinePlace<T> spline_place(T s, const SplineGrid<T>& grid) {
  const T x = s * grid.inv_step, last = static_cast<T>(grid.intervals - 1);
  const T in_grid = x < last ? x : last;  // of what is not a number, too: no integer could hold it
  const int interval = static_cast<int>(in_grid > T(0) ? in_grid : T(0));
  const T t = x - static_cast<T>(interval);
  const T inside = t < T(1) ? t : T(1);
  return {interval, inside, t - inside};
}

// Values and d/ds of the basis at a place, tangent beyond s_max.
template <class T>
MDOPS_HD void spline_basis(const SplinePlace<T>& place, T inv_step, T* value, T* slope) {
  spline_values(place.t, value);
  spline_slopes(place.t, slope);
  for (int m = 0; m < kSplineSupport; ++m) {
    value[m] += place.beyond * slope[m];
    slope[m] *= inv_step;
  }
}

// The second derivatives that go with them: zero along the tangent beyond s_max.
template <class T>
MDOPS_HD void spline_basis_second(const SplinePlace<T>& place, T inv_step, T* curvature) {
  spline_curvatures(place.t, curvature);
  const T scale = place.beyond > T(0) ? T(0) : inv_step * inv_step;
  for (int m = 0; m < kSplineSupport; ++m) curvature[m] *= scale;
}

}  // namespace mdops
