// A norm of atoms' rows x (D, C) by a rotation-invariant length. With m the mean over channels of row 0, or 0
// if rows are not centered, x' = x - m in row 0 and x in the others,
//
//   q = sum_d v_d sum_c x'_dc^2     r = (q + eps)^(-1/2)     y_dc = r x'_dc f_dc + b_c in row 0
//
// Backward, for the gradient g by y and G = g f, s = sum G x':
//
//   by x'_dc   r G_dc - r^3 v_d x'_dc s      by x the same, in row 0 less its mean over channels if centered
//   by f_dc    the sum over atoms of the terms r g_dc x'_dc
//
// Backward of that by x, for the gradient u by it, w from it like x' from x, a = sum w G, t = sum v w x':
//
//   by G_dc    r w_dc - r^3 t x'_dc, times f_dc: by g_dc; times g_dc: the terms of f_dc
//   by x'_dc   -r^3 (v_d x'_dc (a - 3 r^2 s t) + t G_dc + s v_d w_dc), by x as above
#pragma once

#include <cmath>

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

template <class T>
struct NormArgs {
  int64_t atoms, rows, channels;  // N, D, C
  bool centered;
  T eps;
  const T *x, *factors, *bias,
      *shares;                // (N, D, C), (D, C), (C), v (D); bias is null except in a forward pass
  const T *grad, *direction;  // g and u, (N, D, C), or null
  T *y, *by_grad, *terms;     // (N, D, C): y, or the gradient by x; those by g, and terms of f, or null
};

// An atom's numbers in all passes. `Team` is the workers on it. `each(rows, channels, f)` calls f(place) for
// each place, in one of its members, and `sum(rows, channels, f)` returns the sum to all. A place is a
// number, or several adjacent ones, which it loads from and stores to an atom's arrays. It has `in_first`,
// whether it is in the first row, and its `row`.
template <class T, class Team>
struct NormAtom {
  const NormArgs<T>& args;
  const Team& team;
  int64_t at;
  T mean, root;

  MDOPS_HD NormAtom(const NormArgs<T>& all, int64_t n, const Team& members)
      : args(all), team(members), at(n * all.rows * all.channels) {
    mean = mean_of([&](auto p) { return p.load(args.x + at); });
    const T square = sum([&](auto p) { return share(p) * centered(p) * centered(p); });
    root = T(1) / std::sqrt(square + args.eps);
  }

  MDOPS_HD T share(const auto& p) const { return args.shares[p.row(args.channels)]; }
  MDOPS_HD auto centered(const auto& p) const {
    const auto x = p.load(args.x + at);
    return p.in_first(args.channels) ? x - mean : x;
  }
  MDOPS_HD auto scaled_grad(const auto& p) const { return p.load(args.grad + at) * p.load(args.factors); }

  MDOPS_HD void each(const auto& f) const { team.each(args.rows, args.channels, f); }
  MDOPS_HD T sum(const auto& f) const { return team.sum(args.rows, args.channels, f); }

  // For row 0; 0 if rows are not centered.
  MDOPS_HD T mean_of(const auto& f) const {
    return args.centered ? team.sum(1, args.channels, f) / static_cast<T>(args.channels) : T(0);
  }

  // The gradient by x from that by x'.
  MDOPS_HD void by_x(const auto& f) const {
    const T less = mean_of(f);
    each([&](auto p) {
      const auto own = f(p);
      p.store(args.y + at, p.in_first(args.channels) ? own - less : own);
    });
  }

  MDOPS_HD void forward() const {
    each([&](auto p) {
      const auto own = root * centered(p) * p.load(args.factors);
      p.store(args.y + at, p.in_first(args.channels) ? own + p.load(args.bias) : own);
    });
  }

  MDOPS_HD void of_factors() const {
    each([&](auto p) { p.store(args.terms + at, root * p.load(args.grad + at) * centered(p)); });
  }

  MDOPS_HD T along() const {
    return sum([&](auto p) { return scaled_grad(p) * centered(p); });
  }

  MDOPS_HD void backward() const {
    const T back = root * root * root * along();
    by_x([&](auto p) { return root * scaled_grad(p) - back * share(p) * centered(p); });
  }

  MDOPS_HD void twice() const {
    const T less = mean_of([&](auto p) { return p.load(args.direction + at); });
    const auto w = [&](const auto& p) {
      const auto along = p.load(args.direction + at);
      return p.in_first(args.channels) ? along - less : along;
    };
    const T s = along(), cube = root * root * root;
    const T a = sum([&](auto p) { return w(p) * scaled_grad(p); });
    const T t = sum([&](auto p) { return share(p) * w(p) * centered(p); });
    each([&](auto p) {
      const auto by_scaled = root * w(p) - cube * t * centered(p);
      p.store(args.by_grad + at, by_scaled * p.load(args.factors));
      p.store(args.terms + at, by_scaled * p.load(args.grad + at));
    });
    const T own = a - T(3) * root * root * s * t;
    by_x([&](auto p) { return -cube * (share(p) * (centered(p) * own + s * w(p)) + t * scaled_grad(p)); });
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

MDOPS_DECLARE_KERNELS(void norm_atoms(const NormArgs<T>& args, int64_t begin, int64_t end))

}  // namespace mdops
