// The knots that an op's arguments describe.
#pragma once

#include <cmath>

#include "common/op.h"
#include "spline_moment/spline.h"

namespace mdops {

inline void check_knots(const Op& op, double s_max, double grading) {
  if (!(s_max > 0) || !std::isfinite(s_max))
    fail(op, "argument `s_max` is ", s_max, " 1/A, expected a finite number > 0");
  if (!(grading >= 0) || !std::isfinite(grading))
    fail(op, "argument `grading` is ", grading, " 1/A, expected a finite number >= 0");
}

template <class T>
SplineGrid<T> spline_grid(int64_t intervals, double s_max, double grading) {
  const double root = std::sqrt(grading), range = grading > 0 ? std::sqrt(s_max + grading) - root : s_max;
  return {static_cast<T>(intervals / range), static_cast<int>(intervals), static_cast<T>(grading),
          static_cast<T>(root)};
}

}  // namespace mdops
