// A norm of atoms' rows x (D, C) by a length that does not turn. With m the mean over channels of row 0, or 0
// where rows are not centered, x' = x - m in row 0 and x in the others,
//
//   q = sum_d v_d sum_c x'_dc^2     r = (q + eps)^(-1/2)     y_dc = r x'_dc f_dc + b_c in row 0
//
// Backward, for the gradient g by y and G = g f, s = sum G x':
//
//   by x'_dc   r G_dc - r^3 v_d x'_dc s      by x the same, in row 0 less its mean over channels if centered
//   by f_dc    the sum over atoms of the terms r g_dc x'_dc
//
// Backward of that by x, for the gradient u by it, w as x' is of x, a = sum w G, t = sum v w x':
//
//   by G_dc    r w_dc - r^3 t x'_dc, of which by g_dc is f_dc times, and g_dc times the terms of f_dc
//   by x'_dc   -r^3 (v_d x'_dc (a - 3 r^2 s t) + t G_dc + s v_d w_dc), by x as above
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
  const T *x, *factors, *bias, *shares;  // (N, D, C), (D, C), (C), v (D); bias is null but in a pass forward
  const T *grad, *direction;             // g and u, (N, D, C), or null
  T *y, *by_grad, *terms;  // (N, D, C): y, or the gradient by x; those by g, and terms of f, or null
};

// An atom's numbers as all passes see them. `Team` is who works on it: `each(count, f)` calls f(k) for
// k < count, each by one of its members, and `sum(value)` gives all of them the sum of theirs.
template <class T, class Team>
struct NormAtom {
  const NormArgs<T>& args;
  const Team& team;
  int64_t numbers, at;
  T mean, root;

  MDOPS_HD NormAtom(const NormArgs<T>& all, int64_t n, const Team& members)
      : args(all), team(members), numbers(all.rows * all.channels), at(n * numbers) {
    mean = mean_of([&](int64_t k) { return args.x[at + k]; });
    T square = 0;
    team.each(numbers, [&](int64_t k) { square += share(k) * centered(k) * centered(k); });
    root = T(1) / std::sqrt(team.sum(square) + args.eps);
  }

  // By numbers of 32 bits, whose division takes a fifth of the time.
  MDOPS_HD T share(int64_t k) const {
    return args.shares[static_cast<uint32_t>(k) / static_cast<uint32_t>(args.channels)];
  }
  MDOPS_HD T centered(int64_t k) const { return k < args.channels ? args.x[at + k] - mean : args.x[at + k]; }
  MDOPS_HD T scaled_grad(int64_t k) const { return args.grad[at + k] * args.factors[k]; }

  // Of row 0, or 0 where rows are not centered.
  template <class F>
  MDOPS_HD T mean_of(const F& f) const {
    if (!args.centered) return 0;
    T sum = 0;
    team.each(args.channels, [&](int64_t k) { sum += f(k); });
    return team.sum(sum) / static_cast<T>(args.channels);
  }

  // The gradient by x of that by x'.
  template <class F>
  MDOPS_HD void by_x(const F& f) const {
    const T less = mean_of(f);
    team.each(numbers, [&](int64_t k) { args.y[at + k] = k < args.channels ? f(k) - less : f(k); });
  }

  MDOPS_HD void forward() const {
    team.each(numbers, [&](int64_t k) {
      const T own = root * centered(k) * args.factors[k];
      args.y[at + k] = k < args.channels ? own + args.bias[k] : own;
    });
  }

  MDOPS_HD void of_factors() const {
    team.each(numbers, [&](int64_t k) { args.terms[at + k] = root * args.grad[at + k] * centered(k); });
  }

  MDOPS_HD T along() const {
    T sum = 0;
    team.each(numbers, [&](int64_t k) { sum += scaled_grad(k) * centered(k); });
    return team.sum(sum);
  }

  MDOPS_HD void backward() const {
    const T back = root * root * root * along();
    by_x([&](int64_t k) { return root * scaled_grad(k) - back * share(k) * centered(k); });
  }

  MDOPS_HD void twice() const {
    const T less = mean_of([&](int64_t k) { return args.direction[at + k]; });
    const auto w = [&](int64_t k) {
      return k < args.channels ? args.direction[at + k] - less : args.direction[at + k];
    };
    const T s = along(), cube = root * root * root;
    T a = 0, t = 0;
    team.each(numbers, [&](int64_t k) {
      a += w(k) * scaled_grad(k);
      t += share(k) * w(k) * centered(k);
    });
    a = team.sum(a), t = team.sum(t);
    team.each(numbers, [&](int64_t k) {
      const T by_scaled = root * w(k) - cube * t * centered(k);
      args.by_grad[at + k] = by_scaled * args.factors[k];
      args.terms[at + k] = by_scaled * args.grad[at + k];
    });
    const T own = a - T(3) * root * root * s * t;
    by_x([&](int64_t k) { return -cube * (share(k) * (centered(k) * own + s * w(k)) + t * scaled_grad(k)); });
  }
};

template <class T, class Team>
MDOPS_HD void norm_atom(const NormArgs<T>& args, int64_t n, const Team& team) {
  const NormAtom<T, Team> atom(args, n, team);
  if (args.direction)
    atom.twice();
  else if (args.terms)
    atom.of_factors();
  else if (args.grad)
    atom.backward();
  else
    atom.forward();
}

}  // namespace mdops
