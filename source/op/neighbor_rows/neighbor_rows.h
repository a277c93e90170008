// The neighbours that count, as consecutive rows of numbers, atom after atom, and sums over them: the steps
// before and after the layers of DPA-1's attention (attention_layer).
//
// A pair list has K slots an atom; a row is a slot with a neighbour within the cutoff whose pair of types is
// not masked. Of the pair vector d of a row, with the radial terms of env_mat.h,
//
//   R     (4)  of env_mat.h
//   w          the switch
//   u     (3)  (R_x, R_y, R_z) over its length, or over 1e-12 if that is less: d / r times
//              m(r) = min(q r / (d1 1e-12), 1)
//   g     (M)  sum_b phi_b(s) C_ct[b]            c the centre's type, t the neighbour's; with a gate
//              sum_b phi_b(s) (C_c[b] + w C_ct[b])
//
// with the splines phi_b of spline.h. Backwards, with G the gradients and e = d / r:
//
//   d: G_R's of env_mat.h  +  (ds/dr <G_g, dg/ds> + dw/dr (G_w + <G_g, dg/dw>)) e  +  m/r (G_u - e e.G_u) +
//   dm/dr e e.G_u
//
// If g is computed otherwise, from R and w, there are only R, w and u, also with second derivatives: of
// <v, gradient>, with l = e.v, a = e.G_u, l' = (v - l e) / r and a' = (G_u.v - l a) / r
//
//   by G_R, G_w, G_u   R along v of env_mat.h, w' l, m' l e + m l'
//   by d               that of R of env_mat.h  +  G_w (w'' l e + w' l')  +  (m'' l a + (m' - m / r) a') e
//                      + (m' - m / r) (a l' + l (G_u - a e) / r)
//
// The sum over an atom's rows, T_a = sum_j R_ja g_j, has the gradients R_ja: G_a.g_j and g_j: sum_a R_ja G_a.
#pragma once

#include <cmath>

#include "common/isa.h"
#include "env_mat/env_mat.h"
#include "spline_moment/spline.h"

namespace mdops {

constexpr double kShortestRow = 1e-12;  // shorter rows are not normalised

// A pair list with K slots an atom, ordered by type.
template <class T>
struct SlotArgs {
  const T* displacements;  // (N, K, 3), A
  const int32_t* counts;   // (N, ntypes)
  const int32_t* types;    // (N,)
  int64_t atoms, width;
  int ntypes;
};

template <class T>
struct RowListArgs {
  SlotArgs<T> list;
  const bool *pair_mask, *zeroed;  // (ntypes, ntypes), as of Places
  T cutoff2;

  MDOPS_HD bool masked(int type, int t) const { return pair_mask[type * list.ntypes + t]; }
  // Whether such a neighbour fills a place.
  MDOPS_HD bool takes(int type, int t) const { return !masked(type, t) || zeroed[type * list.ntypes + t]; }
};

// Offsets (N + 1,), slots (N K,): n K + k of each row and -1 after the last; for each atom the neighbours
// that fill places, those within the cutoff, and the distance of the nearest.
template <class T>
struct RowListResults {
  int32_t *offsets, *slots, *taken, *within;
  T* nearest;
};

// The slots that are rows, and constants of their numbers.
template <class T>
struct EnvironmentRowsArgs {
  SlotArgs<T> list;
  const int32_t* slots;  // (rows,)
  const T *mean, *std;   // (ntypes,), (ntypes, 2)
  Cutoff<T> cutoff;
  int64_t rows;
};

template <class T>
struct SplineRowsArgs : EnvironmentRowsArgs<T> {
  const T* table;  // (ntypes, functions, intervals + 5, channels)
  SplineGrid<T> grid;
  int64_t channels;
  int functions;
  bool gated;

  MDOPS_HD int basis() const { return grid.intervals + kSplineSupport - 1; }
  // The row of the table at an interval, for a function of centres of a type.
  MDOPS_HD int64_t table_row(int type, int function, int interval) const {
    return (static_cast<int64_t>(type) * functions + function) * basis() + interval;
  }
};

// Of each row; or the gradients by them.
template <class T, class Pointer = T*>
struct EnvironmentRows {
  Pointer environment, switches, directions;  // (rows, 4), (rows,), (rows, 3)
};

template <class T, class Pointer = T*>
struct SplineRows : EnvironmentRows<T, Pointer> {
  Pointer g;  // (rows, channels)
};

// The inputs of a row.
template <class T>
struct Row {
  int64_t slot;
  bool is_wrong;  // a type or an index is out of range
  int type, kind;
  const T* d;
  Normalisation<T> norm;
};

// The row of a slot that is not -1.
template <class T>
MDOPS_HD Row<T> row_of_slot(const EnvironmentRowsArgs<T>& args, int64_t slot) {
  const SlotArgs<T>& list = args.list;
  Row<T> row{slot, true, 0, 0, nullptr, {}};
  if (slot < 0 || slot >= list.atoms * list.width) return row;
  const int64_t atom = slot / list.width, k = slot - atom * list.width;
  row.type = list.types[atom];
  int64_t end = 0;
  bool is_wrong = row.type < 0 || row.type >= list.ntypes;
  for (int t = 0; t < list.ntypes; ++t) {
    const int32_t count = list.counts[atom * list.ntypes + t];
    end += count, is_wrong |= count < 0, row.kind += k >= end;
  }
  if (is_wrong || end > list.width || row.kind >= list.ntypes) return row;
  row.is_wrong = false, row.d = list.displacements + 3 * slot;
  row.norm = normalised(args.mean[row.type], args.std[2 * row.type], args.std[2 * row.type + 1]);
  return row;
}

// Of a pair vector, beside the terms of env_mat.h, w, q and dq/dr with their digits where w is nearly zero,
// and 1 + ... of env_mat.h has lost them: the rows' directions do not fade with w, and would become noise.
template <class T>
struct RowTerms {
  RadialTerms<T> f;
  T r, w, q, dq;

  MDOPS_HD RowTerms() : f{}, r(0), w(0), q(0), dq(0) {}
  MDOPS_HD RowTerms(const T* d, const Cutoff<T>& c) : f(radial_terms(squared_length(d), c)) {
    const T r2 = squared_length(d), scale = T(1) / (c.cutoff - c.smooth);
    r = r2 * f.inv_r;
    T v = (c.cutoff - std::sqrt(r2)) * scale;  // 1 - u
    v = v < T(0) ? T(0) : v;
    v = v > T(1) ? T(1) : v;
    const T u = T(1) - v, inv = T(1) / (r + c.protection);
    w = v * v * v * ((T(6) * u + T(3)) * u + T(1));
    q = w * inv * inv, dq = (f.dw - T(2) * w * inv) * inv * inv;
  }
};

// The factor of d / r in u, and its derivative by r.
template <class T>
struct RowLength {
  T value, slope, curve;

  MDOPS_HD RowLength(const RowTerms<T>& terms, T inv1) : value(1), slope(0), curve(0) {
    const T by = inv1 / T(kShortestRow), length = terms.q * terms.r * by;
    if (length > T(1)) return;
    value = length, slope = (terms.dq * terms.r + terms.q) * by;
    curve = (terms.f.ddq * terms.r + T(2) * terms.dq) * by;
  }
};

// R and u of a row.
template <class T>
MDOPS_HD void row_numbers(const Row<T>& row, const RowTerms<T>& terms, T* environment, T* direction) {
  env_row(row.d, terms.f, row.norm, environment);
  const RowLength<T> length(terms, row.norm.inv1);
  for (int a = 0; a < 3; ++a) direction[a] = length.value * terms.f.inv_r * row.d[a];
}

// The gradient in d, from those by R, w, u and s.
template <class T>
MDOPS_HD void row_gradient(const Row<T>& row, const RowTerms<T>& terms, const T* by_row, T by_switch,
                           const T* by_direction, T by_s, T* grad) {
  const T none[4] = {0, 0, 0, 0};
  const RadialTerms<T>& f = terms.f;
  pair_gradient(row.d, f, row.norm, by_row, none, grad);
  const RowLength<T> length(terms, row.norm.inv1);
  T along = 0;
  for (int a = 0; a < 3; ++a) along += by_direction[a] * row.d[a] * f.inv_r;
  const T across = length.value * f.inv_r;
  const T radial = (by_s * f.ds + by_switch * f.dw + (length.slope - across) * along) * f.inv_r;
  for (int a = 0; a < 3; ++a) grad[a] += radial * row.d[a] + across * by_direction[a];
}

// The second derivatives of R, w and u of a row along v: by the gradients, and by d.
template <class T>
MDOPS_HD void row_second(const Row<T>& row, const RowTerms<T>& terms, const T* v, const T* by_row,
                         T by_switch, const T* by_direction, T* environment, T* switches, T* direction,
                         T* grad) {
  const T none[4] = {0, 0, 0, 0}, *d = row.d;
  const RadialTerms<T>& f = terms.f;
  const RowLength<T> m(terms, row.norm.inv1);
  T e[3], l = 0, a = 0, of_v = 0, ds;
  for (int k = 0; k < 3; ++k) {
    e[k] = d[k] * f.inv_r;
    l += e[k] * v[k], a += e[k] * by_direction[k], of_v += by_direction[k] * v[k];
  }
  env_row_jvp(d, v, f, row.norm, environment, &ds);
  pair_hessian_product(d, v, f, row.norm, by_row, none, none, grad);
  *switches = f.dw * l;
  const T change = (of_v - l * a) * f.inv_r, across = m.slope - m.value * f.inv_r;
  const T along = by_switch * f.ddw * l + m.curve * l * a + across * change;
  for (int k = 0; k < 3; ++k) {
    const T turn = (v[k] - l * e[k]) * f.inv_r;
    direction[k] = m.slope * l * e[k] + m.value * turn;
    grad[k] += along * e[k] + (by_switch * f.dw + across * a) * turn +
               across * l * (by_direction[k] - a * e[k]) * f.inv_r;
  }
}

// Rows (E, M) of atoms' neighbours, and the sums (N, C, M).
template <class T>
struct RowMomentArgs {
  const T *environment, *g;  // (E, C), (E, M)
  const int32_t* offsets;    // (N + 1,)
  int64_t rows, channels, atoms;
  // Whether gradients by rows of no atom may stay unwritten, as the caller reads none.
  bool leaves_rest = false;
  int components = 4;  // C
  // Of which of the `nodes` rows of g each row is, -1 of none; null: row after row.
  const int32_t* index = nullptr;
  int64_t nodes = 0;
};

constexpr int kMostComponents = 1024;

// Of row n: R, w and u with the types of centre and neighbour; zeros where there is no slot.
template <class T>
MDOPS_HD void environment_row(const EnvironmentRowsArgs<T>& args, int64_t n, const EnvironmentRows<T>& out,
                              int32_t* types) {
  const int64_t slot = args.slots[n];
  const Row<T> row = row_of_slot(args, slot);
  const T empty = slot != -1 && row.is_wrong ? static_cast<T>(NAN) : T(0);
  T environment[4] = {empty, empty, empty, empty}, direction[3] = {empty, empty, empty}, w = empty;
  if (!row.is_wrong) {
    const RowTerms<T> terms(row.d, args.cutoff);
    row_numbers(row, terms, environment, direction);
    w = terms.w;
  }
  out.switches[n] = w, types[2 * n] = row.type, types[2 * n + 1] = row.kind;
  for (int a = 0; a < 4; ++a) out.environment[4 * n + a] = environment[a];
  for (int a = 0; a < 3; ++a) out.directions[3 * n + a] = direction[a];
}

// The place of row n's part of a gradient by d, (N, K, 3); null for a row of no slot, and for a wrong one,
// whose part becomes NaN here. A row with an invalid slot takes the place of the slot with its own number.
template <class T>
MDOPS_HD T* gradient_place(const EnvironmentRowsArgs<T>& args, const Row<T>& row, int64_t n, T* out) {
  const int64_t slot = args.slots[n], slots = args.list.atoms * args.list.width;
  if (slot == -1) return nullptr;
  T* const to = out + 3 * (slot >= 0 && slot < slots ? slot : n);
  if (!row.is_wrong) return to;
  for (int a = 0; a < 3; ++a) to[a] = static_cast<T>(NAN);
  return nullptr;
}

// Adds row n's part to the gradient by d, (N, K, 3), which is zero at entry.
template <class T>
MDOPS_HD void environment_row_gradient(const EnvironmentRowsArgs<T>& args, int64_t n,
                                       const EnvironmentRows<T, const T*>& grad, T* out) {
  const Row<T> row = row_of_slot(args, args.slots[n]);
  T* const to = gradient_place(args, row, n, out);
  if (!to) return;
  row_gradient(row, RowTerms<T>(row.d, args.cutoff), grad.environment + 4 * n, grad.switches[n],
               grad.directions + 3 * n, T(0), to);
}

// The same for the second derivative along v (N, K, 3).
template <class T>
MDOPS_HD void environment_row_second(const EnvironmentRowsArgs<T>& args, int64_t n, const T* v,
                                     const EnvironmentRows<T, const T*>& grad, const EnvironmentRows<T>& out,
                                     T* by_d) {
  const int64_t slot = args.slots[n];
  const Row<T> row = row_of_slot(args, slot);
  T environment[4], direction[3], w, found[3];
  const T empty = slot != -1 ? static_cast<T>(NAN) : T(0);
  if (T* const to = gradient_place(args, row, n, by_d)) {
    row_second(row, RowTerms<T>(row.d, args.cutoff), v + 3 * slot, grad.environment + 4 * n, grad.switches[n],
               grad.directions + 3 * n, environment, &w, direction, found);
    for (int a = 0; a < 3; ++a) to[a] = found[a];
  } else {
    w = empty;
    for (int a = 0; a < 4; ++a) environment[a] = empty;
    for (int a = 0; a < 3; ++a) direction[a] = empty;
  }
  out.switches[n] = w;
  for (int a = 0; a < 4; ++a) out.environment[4 * n + a] = environment[a];
  for (int a = 0; a < 3; ++a) out.directions[3 * n + a] = direction[a];
}

// Rows or atoms [begin, end).
MDOPS_DECLARE_KERNELS(void spline_rows(const SplineRowsArgs<T>& args, int64_t begin, int64_t end,
                                       const SplineRows<T>& out))
MDOPS_DECLARE_KERNELS(void spline_row_gradients(const SplineRowsArgs<T>& args, int64_t begin, int64_t end,
                                                const SplineRows<T, const T*>& grad, T* out))
MDOPS_DECLARE_KERNELS(void row_moments(const RowMomentArgs<T>& args, int64_t begin, int64_t end, T* out))
MDOPS_DECLARE_KERNELS(void row_moment_gradients(const RowMomentArgs<T>& args, const T* grad, int64_t begin,
                                                int64_t end, T* by_environment, T* by_g))

}  // namespace mdops
