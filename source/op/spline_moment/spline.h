// The quintic B-spline basis on knots that are uniform, in s or in a function of it: six functions are
// non-zero at any s. Source: de Boor, A Practical Guide to Splines, ch. IX, written out for uniform knots.
#pragma once

#include <cmath>

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

// `intervals` pieces on [0, s_max], intervals + 5 basis functions. The knots are uniform in s, or where
// `grading` is not zero in sqrt(s + grading), close to each other near s = 0.
template <class T>
struct SplineGrid {
  T inv_step;  // of the uniform knots, in s or sqrt(s + grading)
  int intervals;
  T grading = 0, root = 0;  // root: its square root
};

// The place of s: its interval and t in it, and how far s lies beyond s_max in steps (0 inside), where the
// spline goes on along its tangent at s_max. `rate` is the derivative of t by s, and `bend` that of the rate
// over the rate: of uniform knots 1 / step and zero.
template <class T>
struct SplinePlace {
  int interval;
  T t, beyond, rate, bend;
};

template <bool Graded, class T>
MDOPS_HD SplinePlace<T> spline_place(T s, const SplineGrid<T>& grid) {
  T x = s * grid.inv_step, rate = grid.inv_step, bend = 0;
  if constexpr (Graded) {
    // sqrt(s + a) - sqrt(a) without its cancellation. Below zero it goes on along its tangent.
    const T from = (s > T(0) ? s : T(0)) + grid.grading, root = std::sqrt(from);
    x /= root + grid.root;
    rate *= T(0.5) / root;
    bend = T(-0.5) / from;
  }
  const T last = static_cast<T>(grid.intervals - 1);
  const T in_grid = x < last ? x : last;  // `last` for NaN, too: no integer could hold it
  const int interval = static_cast<int>(in_grid > T(0) ? in_grid : T(0));
  const T t = x - static_cast<T>(interval);
  const T inside = t < T(1) ? t : T(1);
  return {interval, inside, t - inside, rate, bend};
}

// Loops that the compiler vectorises check this before.
template <class T>
MDOPS_HD SplinePlace<T> spline_place(T s, const SplineGrid<T>& grid) {
  return grid.grading > T(0) ? spline_place<true>(s, grid) : spline_place<false>(s, grid);
}

// Values and d/ds of the basis at a place, tangent beyond s_max.
template <class T>
MDOPS_HD void spline_basis(const SplinePlace<T>& place, T* value, T* slope) {
  spline_values(place.t, value);
  spline_slopes(place.t, slope);
  for (int m = 0; m < kSplineSupport; ++m) {
    value[m] += place.beyond * slope[m];
    slope[m] *= place.rate;
  }
}

// The second derivatives that match these slopes: none of t along the tangent beyond s_max.
template <class T>
MDOPS_HD void spline_basis_second(const SplinePlace<T>& place, const T* slope, T* curvature) {
  spline_curvatures(place.t, curvature);
  const T scale = place.beyond > T(0) ? T(0) : place.rate * place.rate;
  for (int m = 0; m < kSplineSupport; ++m) curvature[m] = curvature[m] * scale + slope[m] * place.bend;
}

}  // namespace mdops
