// Rows of the environment matrix with solid harmonics of the degrees 2 to L behind R: what DPA-1 sums over
// neighbours with `lmax` = L.
//
//   R_lm = w / (r + p) Y_lm(u) / d0,   u = d / (r + p)
//
// Y_lm are real solid harmonics, homogeneous polynomials of degree l with Racah's normalisation,
// sum_m Y_lm(u)^2 = |u|^(2 l): T. Helgaker, P. Jorgensen and J. Olsen, Molecular Electronic-Structure Theory
// (2000), 6.4; m goes from -l to l. With G the gradients, P_l = sum_m G_lm Y_lm, e = d / r, l_v = e.v,
// i = 1 / (r + p) and
//
//   a   = w i
//   b_l = i (w' - (l + 1) w i)
//   c_l = i (w'' - 2 (l + 1) w' i + (l + 1) (l + 2) w i^2)
//
// the gradient is
//
//   d0 by d      sum_l b_l P_l e + a i grad P_l
//
// and the derivatives of <v, gradient>, with the Hessian H_l of P_l,
//
//   d0 by G_lm   b_l l_v Y_lm + a i v.grad Y_lm
//   d0 by d      sum_l (c_l l_v P_l + b_l i v.grad P_l) e + b_l P_l (v - l_v e) / r
//                + b_l i l_v grad P_l + a i^2 H_l v
//
// Derivatives of Y are those of its formula, by jets.
#pragma once

#include "neighbor_rows/neighbor_rows.h"

namespace mdops {

constexpr int kMostDegrees = 4;

// Rows' components up to a degree: 4, 9, 16, 25.
constexpr MDOPS_HD int components_to(int degree) {
  return (degree + 1) * (degree + 1);
}

// A number with its slopes along N directions.
template <class S, int N>
struct Jet {
  S value, slope[N];
};

template <class S, int N>
MDOPS_HD Jet<S, N> operator+(const Jet<S, N>& x, const Jet<S, N>& y) {
  Jet<S, N> z;
  z.value = x.value + y.value;
  for (int a = 0; a < N; ++a) z.slope[a] = x.slope[a] + y.slope[a];
  return z;
}
template <class S, int N>
MDOPS_HD Jet<S, N> operator-(const Jet<S, N>& x, const Jet<S, N>& y) {
  Jet<S, N> z;
  z.value = x.value - y.value;
  for (int a = 0; a < N; ++a) z.slope[a] = x.slope[a] - y.slope[a];
  return z;
}
template <class S, int N>
MDOPS_HD Jet<S, N> operator*(const Jet<S, N>& x, const Jet<S, N>& y) {
  Jet<S, N> z;
  z.value = x.value * y.value;
  for (int a = 0; a < N; ++a) z.slope[a] = x.slope[a] * y.value + x.value * y.slope[a];
  return z;
}
template <class S>
MDOPS_HD S scaled(S factor, S x) {
  return factor * x;
}
template <class T, class S, int N>
MDOPS_HD Jet<S, N> scaled(T factor, const Jet<S, N>& x) {
  Jet<S, N> z;
  z.value = scaled(factor, x.value);
  for (int a = 0; a < N; ++a) z.slope[a] = scaled(factor, x.slope[a]);
  return z;
}

// f(l, place among the components behind R, Y_lm(x, y, z)) for the degrees from 2 on.
template <class T, class S, class F>
MDOPS_HD void each_harmonic(const S& x, const S& y, const S& z, int degree, const F& f) {
  const S xx = x * x, yy = y * y, zz = z * z, r2 = xx + yy + zz;
  const auto by = [](double factor, const S& of) { return scaled(static_cast<T>(factor), of); };
  constexpr double k3 = 1.7320508075688772, k15 = 3.872983346207417;  // roots
  constexpr double k35_2 = 2.958039891549808, k35_8 = 0.739509972887452, k70_4 = 2.091650066335189;
  constexpr double k10_4 = 0.7905694150420949, k6_4 = 0.6123724356957945, k5_2 = 1.118033988749895;
  f(2, 0, by(k3, x * y));
  f(2, 1, by(k3, y * z));
  f(2, 2, zz - by(0.5, xx + yy));
  f(2, 3, by(k3, x * z));
  f(2, 4, by(k3 / 2, xx - yy));
  if (degree < 3) return;
  const S in_plane = xx - yy, three_x = by(3, xx) - yy, three_y = xx - by(3, yy), five = by(5, zz) - r2;
  f(3, 5, by(k10_4, y * three_x));
  f(3, 6, by(k15, x * y * z));
  f(3, 7, by(k6_4, y * five));
  f(3, 8, by(0.5, z * (by(5, zz) - by(3, r2))));
  f(3, 9, by(k6_4, x * five));
  f(3, 10, by(k15 / 2, z * in_plane));
  f(3, 11, by(k10_4, x * three_y));
  if (degree < 4) return;
  const S seven = by(7, zz) - r2, seven_three = by(7, zz) - by(3, r2);
  f(4, 12, by(k35_2, x * y * in_plane));
  f(4, 13, by(k70_4, y * z * three_x));
  f(4, 14, by(k5_2, x * y * seven));
  f(4, 15, by(k10_4, y * z * seven_three));
  f(4, 16, by(0.125, by(35, zz * zz) - by(30, zz * r2) + by(3, r2 * r2)));
  f(4, 17, by(k10_4, x * z * seven_three));
  f(4, 18, by(k5_2 / 2, in_plane * seven));
  f(4, 19, by(k70_4, x * z * three_y));
  f(4, 20, by(k35_8, xx * xx - by(6, xx * yy) + yy * yy));
}

// out += sum_n by[n] grad B_n(x, y, z) of all components up to a degree: 1, (x, y, z) and these harmonics.
template <int Degree, class T>
MDOPS_HD void add_harmonic_gradients(T x, T y, T z, const T* by, T* out) {
  const T xx = x * x, yy = y * y, zz = z * z, xy = x * y, yz = y * z, xz = x * z;
  constexpr T k3 = T(1.7320508075688772), k15 = T(3.872983346207417);
  T gx = by[1] + k3 * (y * by[4] + z * by[7] + x * by[8]) - x * by[6];
  T gy = by[2] + k3 * (x * by[4] + z * by[5] - y * by[8]) - y * by[6];
  T gz = by[3] + k3 * (y * by[5] + x * by[7]) + T(2) * z * by[6];
  if constexpr (Degree >= 3) {
    constexpr T k10 = T(0.7905694150420949), k6 = T(0.6123724356957945);
    const T *p = by + 9, plane = T(3) * k10 * (xx - yy), across = T(6) * k10 * xy;
    gx += across * p[0] + k15 * (yz * p[1] + xz * p[5]) + k6 * (T(4) * zz - T(3) * xx - yy) * p[4] -
          T(2) * k6 * xy * p[2] - T(3) * xz * p[3] + plane * p[6];
    gy += plane * p[0] + k15 * (xz * p[1] - yz * p[5]) + k6 * (T(4) * zz - xx - T(3) * yy) * p[2] -
          T(2) * k6 * xy * p[4] - T(3) * yz * p[3] - across * p[6];
    gz += k15 * (xy * p[1] + T(0.5) * (xx - yy) * p[5]) + T(8) * k6 * (yz * p[2] + xz * p[4]) +
          (T(3) * zz - T(1.5) * (xx + yy)) * p[3];
  }
  if constexpr (Degree >= 4) {
    constexpr T k35_2 = T(2.958039891549808), k35_8 = T(0.739509972887452), k70 = T(2.091650066335189);
    constexpr T k10 = T(0.7905694150420949), k5 = T(1.118033988749895);
    const T *p = by + 16, xyz = xy * z, r2 = xx + yy + zz;
    gx += k35_2 * y * (T(3) * xx - yy) * p[0] + T(6) * k70 * xyz * p[1] +
          k5 * y * (T(6) * zz - T(3) * xx - yy) * p[2] - T(6) * k10 * xyz * p[3] +
          x * (T(1.5) * r2 - T(7.5) * zz) * p[4] + k10 * z * (T(4) * zz - T(9) * xx - T(3) * yy) * p[5] +
          k5 * x * (T(6) * zz - T(2) * xx) * p[6] + T(3) * k70 * z * (xx - yy) * p[7] +
          T(4) * k35_8 * x * (xx - T(3) * yy) * p[8];
    gy += k35_2 * x * (xx - T(3) * yy) * p[0] + T(3) * k70 * z * (xx - yy) * p[1] +
          k5 * x * (T(6) * zz - xx - T(3) * yy) * p[2] +
          k10 * z * (T(4) * zz - T(3) * xx - T(9) * yy) * p[3] + y * (T(1.5) * r2 - T(7.5) * zz) * p[4] -
          T(6) * k10 * xyz * p[5] + k5 * y * (T(2) * yy - T(6) * zz) * p[6] - T(6) * k70 * xyz * p[7] +
          T(4) * k35_8 * y * (yy - T(3) * xx) * p[8];
    gz += k70 * y * (T(3) * xx - yy) * p[1] + T(12) * k5 * xyz * p[2] +
          k10 * y * (T(12) * zz - T(3) * (xx + yy)) * p[3] + z * (T(10) * zz - T(6) * r2) * p[4] +
          k10 * x * (T(12) * zz - T(3) * (xx + yy)) * p[5] + T(6) * k5 * z * (xx - yy) * p[6] +
          k70 * x * (xx - T(3) * yy) * p[7];
  }
  out[0] += gx, out[1] += gy, out[2] += gz;
}

// The terms of the formulas above for a row; all zero for a pair at distance zero, which has no direction.
template <class T>
struct HarmonicTerms {
  T e[3], u[3], inv, inv_r, w, dw, ddw;

  MDOPS_HD HarmonicTerms(const Row<T>& row, const RowTerms<T>& terms, const Cutoff<T>& cutoff)
      : inv(0), inv_r(0), w(0), dw(0), ddw(0) {
    const bool is_there = squared_length(row.d) != T(0);  // NaN stays NaN
    if (is_there) {
      inv = T(1) / (terms.r + cutoff.protection), inv_r = terms.f.inv_r;
      w = terms.w, dw = terms.f.dw, ddw = terms.f.ddw;
    }
    for (int a = 0; a < 3; ++a) e[a] = inv_r * row.d[a], u[a] = inv * row.d[a];
  }
  MDOPS_HD T value() const { return w * inv; }
  MDOPS_HD T slope(int l) const { return inv * (dw - T(l + 1) * w * inv); }
  MDOPS_HD T curve(int l) const {
    return inv * (ddw - T(2 * (l + 1)) * dw * inv + T((l + 1) * (l + 2)) * w * inv * inv);
  }
};

// All components of row n; zeros where there is no slot.
template <class T>
MDOPS_HD void harmonic_row(const EnvironmentRowsArgs<T>& args, int degree, int64_t n, T* to) {
  const int64_t slot = args.slots[n];
  const Row<T> row = row_of_slot(args, slot);
  if (row.is_wrong) {
    for (int k = 0; k < components_to(degree); ++k) to[k] = slot != -1 ? static_cast<T>(NAN) : T(0);
    return;
  }
  const RowTerms<T> terms(row.d, args.cutoff);
  env_row(row.d, terms.f, row.norm, to);
  const HarmonicTerms<T> h(row, terms, args.cutoff);
  const T by = h.value() * row.norm.scale;
  each_harmonic<T>(h.u[0], h.u[1], h.u[2], degree, [&](int, int k, T y) { to[4 + k] = by * y; });
}

// Adds row n's part of the gradient by d, (N, K, 3), as `environment_row_gradient`.
template <class T>
MDOPS_HD void harmonic_row_gradient(const EnvironmentRowsArgs<T>& args, int degree, int64_t n, const T* grad,
                                    T* out) {
  const Row<T> row = row_of_slot(args, args.slots[n]);
  T* const to = gradient_place(args, row, n, out);
  if (!to) return;
  using Number = Jet<T, 3>;
  const T none[4] = {0, 0, 0, 0}, *by = grad + n * components_to(degree);
  const RowTerms<T> terms(row.d, args.cutoff);
  pair_gradient(row.d, terms.f, row.norm, by, none, to);
  const HarmonicTerms<T> h(row, terms, args.cutoff);
  T along = 0, across[3] = {0, 0, 0};
  const Number x{h.u[0], {1, 0, 0}}, y{h.u[1], {0, 1, 0}}, z{h.u[2], {0, 0, 1}};
  each_harmonic<T>(x, y, z, degree, [&](int l, int k, const Number& found) {
    along += by[4 + k] * h.slope(l) * found.value;
    for (int a = 0; a < 3; ++a) across[a] += by[4 + k] * found.slope[a];
  });
  for (int a = 0; a < 3; ++a) to[a] += row.norm.scale * (along * h.e[a] + h.value() * h.inv * across[a]);
}

// The same for the second derivative along v (N, K, 3), with that by the gradients in `rows`.
template <class T>
MDOPS_HD void harmonic_row_second(const EnvironmentRowsArgs<T>& args, int degree, int64_t n, const T* v,
                                  const T* grad, T* rows, T* by_d) {
  const int64_t slot = args.slots[n];
  const int components = components_to(degree);
  const Row<T> row = row_of_slot(args, slot);
  T *const out = rows + n * components, *const to = gradient_place(args, row, n, by_d);
  if (!to) {
    for (int k = 0; k < components; ++k) out[k] = slot != -1 ? static_cast<T>(NAN) : T(0);
    return;
  }
  using Along = Jet<T, 1>;
  using Number = Jet<Along, 3>;
  const T none[4] = {0, 0, 0, 0}, *by = grad + n * components, *of_v = v + 3 * slot;
  const RowTerms<T> terms(row.d, args.cutoff);
  T ds;
  env_row_jvp(row.d, of_v, terms.f, row.norm, out, &ds);
  pair_hessian_product(row.d, of_v, terms.f, row.norm, by, none, none, to);
  const HarmonicTerms<T> h(row, terms, args.cutoff);
  const T l_v = h.e[0] * of_v[0] + h.e[1] * of_v[1] + h.e[2] * of_v[2], a_i = h.value() * h.inv;
  T along = 0, turned = 0, rest[3] = {0, 0, 0};
  const auto seed = [&](int a) {
    Number x{{h.u[a], {of_v[a]}}, {{0, {0}}, {0, {0}}, {0, {0}}}};
    x.slope[a].value = 1;
    return x;
  };
  each_harmonic<T>(seed(0), seed(1), seed(2), degree, [&](int l, int k, const Number& found) {
    const T g = by[4 + k], b = h.slope(l), y = found.value.value, change = found.value.slope[0];
    out[4 + k] = row.norm.scale * (b * l_v * y + a_i * change);
    along += g * (h.curve(l) * l_v * y + b * h.inv * change), turned += g * b * y;
    for (int a = 0; a < 3; ++a)
      rest[a] += g * (b * h.inv * l_v * found.slope[a].value + a_i * h.inv * found.slope[a].slope[0]);
  });
  for (int a = 0; a < 3; ++a)
    to[a] += row.norm.scale * (along * h.e[a] + turned * (of_v[a] - l_v * h.e[a]) * h.inv_r + rest[a]);
}

}  // namespace mdops
