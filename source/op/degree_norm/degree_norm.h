// A norm of atoms' rows x (D, C) by a length that does not turn. With m the mean over channels of row 0, or 0
// where rows are not centered, x' = x - m in row 0 and x in the others,
//
//   q = sum_d v_d sum_c x'_dc^2     r = (q + eps)^(-1/2)     y_dc = r x'_dc f_dc + b_c in row 0
//
// Backward, for the gradient g by y and G = g f:
//
//   by x'_dc   r G_dc - r^3 v_d x'_dc sum G x'     by x the same, in row 0 less its mean over channels if
//   centered
#pragma once

#include <cmath>
#include <cstdint>

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

template <class T>
struct NormArgs {
  int64_t atoms, rows, channels;  // N, D, C
  bool centered;
  T eps;
  const T *x, *factors, *bias, *shares, *grad;  // (N, D, C), (D, C), (C), v (D), (N, D, C) or null
  T* y;                                         // (N, D, C)
};

// The passes over an atom's numbers. `Team` is who works on it: `each(count, f)` calls f(k) for k < count,
// each by one of its members, and `sum(value)` gives all of them the sum of theirs.
template <class T, class Team>
MDOPS_HD void norm_atom(const NormArgs<T>& args, int64_t n, const Team& team) {
  const int64_t channels = args.channels, numbers = args.rows * channels;
  const T* const x = args.x + n * numbers;
  T* const y = args.y + n * numbers;
  T mean = 0;
  if (args.centered) {
    team.each(channels, [&](int64_t c) { mean += x[c]; });
    mean = team.sum(mean) / static_cast<T>(channels);
  }
  const auto centered = [&](int64_t k) { return k < channels ? x[k] - mean : x[k]; };
  T square = 0;
  team.each(numbers, [&](int64_t k) {
    const T own = centered(k);
    square += args.shares[k / channels] * own * own;
  });
  const T root = T(1) / std::sqrt(team.sum(square) + args.eps);
  if (!args.grad) {
    team.each(numbers, [&](int64_t k) {
      const T own = root * centered(k) * args.factors[k];
      y[k] = k < channels ? own + args.bias[k] : own;
    });
    return;
  }
  const T* const g = args.grad + n * numbers;
  T along = 0;
  team.each(numbers, [&](int64_t k) { along += g[k] * args.factors[k] * centered(k); });
  const T back = root * root * root * team.sum(along);
  const auto by_centered = [&](int64_t k) {
    return root * g[k] * args.factors[k] - back * args.shares[k / channels] * centered(k);
  };
  T less = 0;
  if (args.centered) {
    team.each(channels, [&](int64_t c) { less += by_centered(c); });
    less = team.sum(less) / static_cast<T>(channels);
  }
  team.each(numbers, [&](int64_t k) { y[k] = k < channels ? by_centered(k) - less : by_centered(k); });
}

}  // namespace mdops
