// Sums over neighbours of splines of the distance times harmonics of the direction, and their gradient:
//
//   A[lm][t][b] = sum_{j of type t} chi(r_j) phi_b(r_j) B_lm(u_j),   u = d / r
//
// phi_b are the uniform quintic B-splines on [0, cutoff] (spline_moment/spline.h), B the solid harmonics of
// neighbor_rows/harmonics.h with (x, y, z) as degree 1 and 1 as degree 0, and chi the envelope
//
//   chi = w^4 (1 + 4 x + 10 x^2 + 20 x^3 + 35 x^4),   x = r / cutoff,  w = 1 - x,
//   dchi/dr = -280 x^4 w^3 / cutoff,
//
// which is 1 + O(x^5) at 0 and has three derivatives that are zero at the cutoff. With L = sum_lm P_lm(r)
// B_lm(u) for each neighbour, and B homogeneous of degree l,
//
//   dL/dd = e sum_lm (P'_lm - l P_lm / r) B_lm + (1 / r) sum_lm P_lm grad B_lm(u),   e = u.
//
// P = chi sum_b phi_b g_b with the gradient g of the moments, and the slope of that sum is one of quartic
// splines with (g_b+1 - g_b) / step. These differences are a separate argument: a caller that computes g from
// splines' coefficients can use the coefficients' differences, without loss of digits.
#pragma once

#include <cmath>
#include <type_traits>

#include "common/isa.h"
#include "common/math.h"
#include "displacements/args.h"
#include "neighbor_rows/harmonics.h"
#include "spline_moment/spline.h"

namespace mdops {

constexpr int kLeastMomentDegree = 2;
// Rows of splines are zero-padded: kernels read eight at once.
constexpr int kSplineLanes = 8;
MDOPS_HD int64_t padded_basis(int64_t intervals) {
  return (intervals + kSplineSupport - 1 + (kSplineLanes - kSplineSupport) + kSplineLanes - 1) /
         kSplineLanes * kSplineLanes;
}

// `inverse`: of the cutoff.
template <class T>
MDOPS_HD void envelope(T r, T inverse, T* value, T* slope) {
  const T x = r * inverse, left = T(1) - x, w = left < T(0) ? T(0) : left, x2 = x * x, w2 = w * w;
  *value = w2 * w2 * (T(1) + T(4) * x + x2 * (T(10) + T(20) * x + T(35) * x2));
  *slope = T(-280) * x2 * x2 * w2 * w * inverse;
}

// The five quartic splines of an interval at t in [0, 1]: slopes of quintic splines are sums of them.
template <class T>
MDOPS_HD void quartic_values(T t, T* w) {
  const T c = T(1) / T(24), t2 = t * t, o = T(1) - t, o2 = o * o;
  w[0] = o2 * o2 * c;
  w[1] = (T(11) - T(12) * t + t2 * (T(-6) + T(12) * t - T(4) * t2)) * c;
  w[2] = (T(11) + T(12) * t + t2 * (T(-6) - T(12) * t + T(6) * t2)) * c;
  w[3] = (T(1) + T(4) * t + t2 * (T(6) + T(4) * t - T(4) * t2)) * c;
  w[4] = t2 * t2 * c;
}

// A neighbour.
template <class T>
struct HarmonicPair {
  T direction[3], inv_r, chi, dchi;
  SplinePlace<T> place;

  MDOPS_HD HarmonicPair(const T* d, T cutoff, const SplineGrid<T>& grid) {
    const T r2 = d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
#ifdef __CUDA_ARCH__
    inv_r = r2 == T(0) ? T(0) : rsqrt(r2);
    const T r = r2 * inv_r;
#else
    const T r = std::sqrt(r2);
    inv_r = r2 > T(0) ? T(1) / r : T(0);
#endif
    place = spline_place<false>(r, grid);
    envelope(r, T(1) / cutoff, &chi, &dchi);
    for (int a = 0; a < 3; ++a) direction[a] = d[a] * inv_r;
  }

  // f(l, place among all components, B_lm) with numbers or jets for x, y and z.
  template <class S, class F>
  static MDOPS_HD void each(const S& one, const S& x, const S& y, const S& z, int degree, const F& f) {
    f(0, 0, one), f(1, 1, x), f(1, 2, y), f(1, 3, z);
    each_harmonic<T>(x, y, z, degree, [&](int l, int n, const S& value) { f(l, 4 + n, value); });
  }

  // The factor instead of chi from degree 1 on, and its slope.
  MDOPS_HD T fade() const { return chi * chi; }
  MDOPS_HD T slope() const { return T(2) * chi * dchi; }
  // The gradient along the direction by the masses, sums of chi^2 and chi^4.
  MDOPS_HD T by_masses(T second, T fourth) const {
    return T(2) * chi * dchi * (second + T(2) * chi * chi * fourth);
  }

  // The gradient from its part along the direction, and that by it.
  MDOPS_HD void turned(T along, const T* by_direction, T* out) const {
    const T *e = direction,
            outward = e[0] * by_direction[0] + e[1] * by_direction[1] + e[2] * by_direction[2];
    for (int a = 0; a < 3; ++a) out[a] = e[a] * along + inv_r * (by_direction[a] - e[a] * outward);
  }

  // dL/dd of sums P and of those of their slopes, Q, both without chi, and of what else there is along the
  // direction.
  template <class Sums>
  MDOPS_HD void gradient(int degree, const Sums& p, const Sums& q, T radial, T* out) const {
    using Number = Jet<T, 3>;
    const T *e = direction, own = fade(), steep = slope(), along_one = own * inv_r;
    T across[3] = {0, 0, 0};
    const Number one{T(1), {0, 0, 0}}, x{e[0], {1, 0, 0}}, y{e[1], {0, 1, 0}}, z{e[2], {0, 0, 1}};
    each(one, x, y, z, degree, [&](int l, int n, const Number& b) {
      radial +=
          (l == 0 ? p[n] * dchi + q[n] * chi : p[n] * (steep - T(l) * along_one) + q[n] * own) * b.value;
      for (int a = 0; a < 3; ++a) across[a] += p[n] * b.slope[a];
    });
    for (int a = 0; a < 3; ++a) out[a] = e[a] * radial + along_one * across[a];
  }
};

// work(degree) with it as a constant.
void with_moment_degree(int degree, const auto& work) {
  if (degree == 2)
    work(std::integral_constant<int, 2>{});
  else if (degree == 3)
    work(std::integral_constant<int, 3>{});
  else
    work(std::integral_constant<int, 4>{});
}

// All contiguous (ops.md).
template <class T>
struct HarmonicMomentArgs {
  const T* displacements;  // (N, width, 3)
  const int32_t* counts;   // (N, ntypes)
  const int32_t* types;    // (N,)
  const bool* pair_mask;   // (ntypes, ntypes)
  T cutoff;
  SplineGrid<T> grid;
  int64_t atoms, width, basis;  // basis: of a row
  int ntypes, degree;

  MDOPS_HD int64_t row() const { return basis * ntypes; }
  MDOPS_HD int64_t numbers() const { return row() * components_to(degree); }
};

// Functions F of each pair of types as coefficients of splines, and what is summed of them:
//
//   first[c]      = sum_j chi F_c                  c < firsts,   behind them sum_j chi^2 and sum_j chi^4
//   second[lm][c] = sum_j chi^2 F_c B_lm(u_j)      c < seconds
//
// second[0] is zero. `pieces` are the polynomials of each interval, of powers of t, of all functions or of
// those that `second` has.
template <class T>
struct HarmonicSumArgs {
  const T* table;    // (ntypes, row, firsts)
  const T* rows[2];  // (ntypes, firsts, row): of the splines, and of their slopes
  const T* pieces;   // (ntypes, ntypes, intervals, kSplineSupport, known)
  int64_t firsts, seconds, known;

  MDOPS_HD int64_t width() const { return firsts + 2; }
};

// What is known of the neighbours: how many are within the cutoff, and the distance of the nearest.
template <class T>
struct HarmonicSums {
  T *first, *second;
  int32_t* within;  // (N,)
  T* nearest;       // (N,), the cutoff where there is none
};

// The inputs and outputs of forces.
template <class T>
struct HarmonicForceArgs {
  const T *by_first, *by_second;
  const T* most;     // (2, firsts): the largest value of each function, and its largest slope
  const T* nearest;  // (N,)
  PairRows rows;
  double *forces, *virial;  // (N, 3), (S, 3, 3)
};

constexpr int kLeastSeconds = 4, kMostSeconds = 32;  // a power of two

// Each kernel does the atoms [begin, end).
MDOPS_DECLARE_KERNELS(void harmonic_sums_forward(const HarmonicMomentArgs<T>& args, int64_t begin,
                                                 int64_t end, const HarmonicSumArgs<T>& sums,
                                                 const HarmonicSums<T>& out))
MDOPS_DECLARE_KERNELS(void harmonic_sums_backward(const HarmonicMomentArgs<T>& args, int64_t begin,
                                                  int64_t end, const HarmonicSumArgs<T>& sums,
                                                  const T* by_first, const T* by_second, T* pair_grad))

}  // namespace mdops
