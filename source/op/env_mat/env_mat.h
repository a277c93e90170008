// DeePMD-kit's smooth environment matrix and its derivatives, for one pair.
//
//   r = |d|,  w(r) the switch,  s = w / (r + p),  q = w / (r + p)^2
//   R = ((s - m) / d0,  q d_x / d1,  q d_y / d1,  q d_z / d1)
//
// with the mean m and deviations d0, d1 of the centre's type, and the protection p.
// Source: Zhang et al., NeurIPS 2018 (arXiv:1805.09003), eq. 5, with DeePMD-kit's quintic switch.
#pragma once

#include <cmath>

#include "common/math.h"

namespace mdops {

// The switch goes from 1 at `smooth` to 0 at `cutoff`; lengths in A.
template <class T>
struct Cutoff {
  T cutoff, smooth, protection;
};

// w, s and q with their first and second derivatives in r, and 1/r.
template <class T>
struct RadialTerms {
  T inv_r, w, dw, ddw, s, ds, dds, q, dq, ddq;
};

// w = 1 + u^3 (-6 u^2 + 15 u - 10),  u = (r - smooth) / (cutoff - smooth) clamped to [0, 1].
template <class T>
MDOPS_HD RadialTerms<T> radial_terms(T r2, const Cutoff<T>& c) {
  const T r = std::sqrt(r2), scale = T(1) / (c.cutoff - c.smooth);
  T u = (r - c.smooth) * scale;
  u = u < T(0) ? T(0) : u;
  u = u > T(1) ? T(1) : u;
  const T v = u * (T(1) - u);
  const T w = T(1) + u * u * u * (u * (T(15) - T(6) * u) - T(10));
  const T dw = T(-30) * v * v * scale;
  const T ddw = T(-60) * v * (T(1) - T(2) * u) * scale * scale;
  const T inv = T(1) / (r + c.protection), inv2 = inv * inv, inv3 = inv2 * inv;
  RadialTerms<T> f;
  f.inv_r = T(1) / r;
  f.w = w, f.dw = dw, f.ddw = ddw;
  f.s = w * inv;
  f.ds = dw * inv - w * inv2;
  f.dds = ddw * inv - T(2) * dw * inv2 + T(2) * w * inv3;
  f.q = w * inv2;
  f.dq = dw * inv2 - T(2) * w * inv3;
  f.ddq = ddw * inv2 - T(4) * dw * inv3 + T(6) * w * inv2 * inv2;
  return f;
}

// The normalisation of a centre's type: R_0 = scale s + shift, R_xyz = q d * inv1.
template <class T>
struct Normalisation {
  T scale, shift, inv1;
};

// R = (1, 0, 0, 0), for plain sums; NaN stays NaN.
template <class T>
MDOPS_HD Normalisation<T> ones(T mean, T deviation0, T deviation1) {
  return {T(0), T(1) + T(0) * (mean + deviation0 + deviation1), T(0)};
}

// With the mean m and the deviations d0 and d1.
template <class T>
MDOPS_HD Normalisation<T> normalised(T mean, T deviation0, T deviation1) {
  const T scale = T(1) / deviation0;
  return {scale, -mean * scale, T(1) / deviation1};
}

// R of one pair.
template <class T>
MDOPS_HD void env_row(const T* d, const RadialTerms<T>& f, const Normalisation<T>& n, T* row) {
  row[0] = f.s * n.scale + n.shift;
  for (int a = 0; a < 3; ++a) row[1 + a] = f.q * n.inv1 * d[a];
}

// dR along the tangent v of the pair vector; `ds` gets ds along v.
template <class T>
MDOPS_HD void env_row_jvp(const T* d, const T* v, const RadialTerms<T>& f, const Normalisation<T>& n, T* row,
                          T* ds) {
  const T along = (d[0] * v[0] + d[1] * v[1] + d[2] * v[2]) * f.inv_r;  // dr along v
  *ds = f.ds * along;
  row[0] = *ds * n.scale;
  for (int a = 0; a < 3; ++a) row[1 + a] = (f.dq * along * d[a] + f.q * v[a]) * n.inv1;
}

// Gradient in d of  L = sum_a P_a(s) R_a(d),  given P and P' = dP/ds.
template <class T>
MDOPS_HD void pair_gradient(const T* d, const RadialTerms<T>& f, const Normalisation<T>& n, const T* p,
                            const T* dp, T* grad) {
  const T pd = (p[1] * d[0] + p[2] * d[1] + p[3] * d[2]) * n.inv1;
  const T dpd = (dp[1] * d[0] + dp[2] * d[1] + dp[3] * d[2]) * n.inv1;
  const T dl_ds = p[0] * n.scale + dp[0] * (f.s * n.scale + n.shift) + dpd * f.q;
  const T radial = (dl_ds * f.ds + pd * f.dq) * f.inv_r;
  for (int a = 0; a < 3; ++a) grad[a] = radial * d[a] + f.q * n.inv1 * p[1 + a];
}

// Hessian of the same L times the tangent v, given P, P' and P'' in s.
//
// With e = d/r, l = e.v:  along v,  DL = sum_a P_a' s' l R_a + P_a DR_a;  its gradient in d uses
//   grad s = s' e,  grad l = (v - e l)/r,  grad(s' l) = s'' l e + s' grad l,
//   grad(P.R_xyz) = q' (P.d) e + q P,  grad(P.DR_xyz) = (q'' l e + q' grad l)(P.d) + q' l P + q' (P.v) e.
template <class T>
MDOPS_HD void pair_hessian_product(const T* d, const T* v, const RadialTerms<T>& f, const Normalisation<T>& n,
                                   const T* p, const T* dp, const T* ddp, T* out) {
  const T i = n.inv1;
  const T pd = (p[1] * d[0] + p[2] * d[1] + p[3] * d[2]) * i;
  const T pv = (p[1] * v[0] + p[2] * v[1] + p[3] * v[2]) * i;
  const T dpd = (dp[1] * d[0] + dp[2] * d[1] + dp[3] * d[2]) * i;
  const T dpv = (dp[1] * v[0] + dp[2] * v[1] + dp[3] * v[2]) * i;
  const T ddpd = (ddp[1] * d[0] + ddp[2] * d[1] + ddp[3] * d[2]) * i;
  const T r0 = f.s * n.scale + n.shift;
  const T l = (d[0] * v[0] + d[1] * v[1] + d[2] * v[2]) * f.inv_r;
  const T ds_v = f.ds * l;  // s along v

  const T second = ddp[0] * r0 + ddpd * f.q;                      // sum P'' R
  const T first = dp[0] * r0 + dpd * f.q + p[0] * n.scale;        // multiplies grad(s' l)
  const T mixed = T(2) * dp[0] * ds_v * n.scale + dpd * f.dq * l  // P' s' l grad R and P' grad s DR,
                  + dpv * f.q;                                    // their parts along e from s
  const T along_e =
      f.ds * (second * ds_v + mixed) + dpd * ds_v * f.dq + first * f.dds * l + pd * f.ddq * l + pv * f.dq;
  const T along_grad_l = first * f.ds + pd * f.dq;
  for (int a = 0; a < 3; ++a) {
    const T e = d[a] * f.inv_r, grad_l = (v[a] - e * l) * f.inv_r;
    out[a] = along_e * e + along_grad_l * grad_l + (dp[1 + a] * ds_v * f.q + p[1 + a] * f.dq * l) * i;
  }
}

// With a gate, the row is w R in the place of R. Its derivative along the tangent v, from R and dR:
template <class T>
MDOPS_HD void gate_row_jvp(const T* d, const T* v, const RadialTerms<T>& f, const T* row, T* drow) {
  const T dw = f.dw * (d[0] * v[0] + d[1] * v[1] + d[2] * v[2]) * f.inv_r;
  for (int a = 0; a < 4; ++a) drow[a] = f.w * drow[a] + dw * row[a];
}

// Adds the part of w' to the gradient of w L, for the value L: the rest is w times the gradient of L.
template <class T>
MDOPS_HD void add_gate_slope(const T* d, const RadialTerms<T>& f, T value, T* grad) {
  const T slope = value * f.dw * f.inv_r;
  for (int a = 0; a < 3; ++a) grad[a] += slope * d[a];
}

// The Hessian of w L times the tangent v, from the value, the gradient and the Hessian product of L.
template <class T>
MDOPS_HD void gate_hessian_product(const T* d, const T* v, const RadialTerms<T>& f, T value, const T* grad,
                                   T* out) {
  const T l = (d[0] * v[0] + d[1] * v[1] + d[2] * v[2]) * f.inv_r;
  const T change = grad[0] * v[0] + grad[1] * v[1] + grad[2] * v[2];
  for (int a = 0; a < 3; ++a) {
    const T e = d[a] * f.inv_r;
    out[a] = f.w * out[a] + f.dw * (l * grad[a] + change * e + value * (v[a] - e * l) * f.inv_r) +
             f.ddw * value * l * e;
  }
}

// Replaces L's Hessian product in `out` by that of w L, for the L of pair_hessian_product.
template <class T>
MDOPS_HD void gate_pair_hessian(const T* d, const T* v, const RadialTerms<T>& f, const Normalisation<T>& n,
                                const T* p, const T* dp, T* out) {
  T row[4], grad[3], value = 0;
  env_row(d, f, n, row);
  for (int a = 0; a < 4; ++a) value += p[a] * row[a];
  pair_gradient(d, f, n, p, dp, grad);
  gate_hessian_product(d, v, f, value, grad, out);
}

template <class T>
MDOPS_HD T squared_length(const T* d) {
  return d[0] * d[0] + d[1] * d[1] + d[2] * d[2];
}

// Whether a pair counts, by its squared length: up to the cutoff and at it, as in DeePMD-kit, and if it is
// NaN, so that results show it.
template <class T>
MDOPS_HD bool within_cutoff(T r2, T cutoff2) {
  return !(r2 > cutoff2);
}

// The smaller of the smallest squared length so far and another one; NaN if either is NaN.
template <class T>
MDOPS_HD T nearest_of(T so_far, T r2) {
  return ((r2 < so_far) | (r2 != r2)) ? r2 : so_far;
}

// One slot of env_mat: R of a present pair; with s = 0 for an absent one.
template <class T>
MDOPS_HD void env_slot(const T* d, bool present, const Cutoff<T>& cutoff, const Normalisation<T>& n, T* row) {
  row[0] = n.shift;
  row[1] = row[2] = row[3] = T(0);
  if (present) env_row(d, radial_terms(squared_length(d), cutoff), n, row);
}

// The gradient of R as the P of pair_gradient: four numbers, the last three zero when radial.
template <class T>
MDOPS_HD void widen(const T* grad, int columns, T* p) {
  for (int a = 0; a < 4; ++a) p[a] = a < columns ? grad[a] : T(0);
}

// One pair of env_mat_backward: the gradient in d, from that of `columns` columns of R.
template <class T>
MDOPS_HD void env_slot_backward(const T* grad, int columns, const T* d, const Cutoff<T>& cutoff,
                                const Normalisation<T>& n, T* out) {
  T p[4];
  widen(grad, columns, p);
  const T none[4] = {0, 0, 0, 0};
  pair_gradient(d, radial_terms(squared_length(d), cutoff), n, p, none, out);
}

// One pair of env_mat_backward_backward: dR along the tangent v, and the Hessian of <grad, R> times v.
template <class T>
MDOPS_HD void env_slot_second(const T* v, const T* grad, int columns, const T* d, const Cutoff<T>& cutoff,
                              const Normalisation<T>& n, T* row, T* out) {
  T p[4], ds;
  widen(grad, columns, p);
  const T none[4] = {0, 0, 0, 0};
  const RadialTerms<T> f = radial_terms(squared_length(d), cutoff);
  env_row_jvp(d, v, f, n, row, &ds);
  pair_hessian_product(d, v, f, n, p, none, none, out);
}

}  // namespace mdops
