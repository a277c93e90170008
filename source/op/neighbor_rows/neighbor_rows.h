// The neighbours that count, as rows of numbers one after another, atom after atom, and sums over them: what
// stands before and behind the layers of DPA-1's attention (attention_layer).
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
// The sum over an atom's rows, T_a = sum_j R_ja g_j, has the gradients R_ja: G_a.g_j and g_j: sum_a R_ja G_a.
#pragma once

#include "common/isa.h"
#include "env_mat/env_mat.h"
#include "spline_moment/spline.h"

namespace mdops {

constexpr double kShortestRow = 1e-12;  // below, rows are not made longer

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
  // Whether such a neighbour takes a place.
  MDOPS_HD bool takes(int type, int t) const { return !masked(type, t) || zeroed[type * list.ntypes + t]; }
};

// Offsets (N + 1,), slots (N K,): n K + k of each row and -1 behind them; of each atom the neighbours that
// take places, those within the cutoff, and the distance of the nearest.
template <class T>
struct RowListResults {
  int32_t *offsets, *slots, *taken, *within;
  T* nearest;
};

template <class T>
struct SplineRowsArgs {
  SlotArgs<T> list;
  const int32_t* slots;  // (rows,)
  const T *mean, *std;   // (ntypes,), (ntypes, 2)
  const T* table;        // (ntypes, functions, intervals + 5, channels)
  Cutoff<T> cutoff;
  SplineGrid<T> grid;
  int64_t rows, channels;
  int functions;
  bool gated;

  MDOPS_HD int basis() const { return grid.intervals + kSplineSupport - 1; }
  // Of a function of centres of a type, the row of the table at an interval.
  MDOPS_HD int64_t table_row(int type, int function, int interval) const {
    return (static_cast<int64_t>(type) * functions + function) * basis() + interval;
  }
};

// Of each row; or the gradients by them.
template <class T, class Pointer = T*>
struct SplineRows {
  Pointer environment, switches, directions, g;  // (rows, 4), (rows,), (rows, 3), (rows, channels)
};

// What a row begins with.
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
MDOPS_HD Row<T> row_of_slot(const SplineRowsArgs<T>& args, int64_t slot) {
  const SlotArgs<T>& list = args.list;
  Row<T> row{slot, true, 0, 0, nullptr, {}};
  if (slot < 0 || slot >= list.atoms * list.width) return row;
  const int64_t atom = slot / list.width, k = slot - atom * list.width;
  row.type = list.types[atom];
  int64_t end = 0;
  for (; row.kind < list.ntypes; ++row.kind) {
    end += list.counts[atom * list.ntypes + row.kind];
    if (k < end) break;
  }
  if (row.type < 0 || row.type >= list.ntypes || row.kind >= list.ntypes) return row;
  row.is_wrong = false, row.d = list.displacements + 3 * slot;
  row.norm = normalised(args.mean[row.type], args.std[2 * row.type], args.std[2 * row.type + 1]);
  return row;
}

// Of a pair vector, beside the terms of env_mat.h, w, q and dq/dr with their digits where w is nearly zero,
// and 1 + ... of env_mat.h has lost them: the rows' directions do not fade with w, and would be noise there.
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

// By what d / r is multiplied in u, and how that changes with r.
template <class T>
struct RowLength {
  T value, slope;

  MDOPS_HD RowLength(const RowTerms<T>& terms, T inv1) : value(1), slope(0) {
    const T by = inv1 / T(kShortestRow), length = terms.q * terms.r * by;
    if (length > T(1)) return;
    value = length, slope = (terms.dq * terms.r + terms.q) * by;
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

// Rows (E, M) of atoms' neighbours, and the sums (N, 4, M).
template <class T>
struct RowMomentArgs {
  const T *environment, *g;  // (E, 4), (E, M)
  const int32_t* offsets;    // (N + 1,)
  int64_t rows, channels, atoms;
};

#define MDOPS_NEIGHBOR_ROWS_KERNELS(T)                                                                       \
  /* Rows or atoms [begin, end). */                                                                          \
  MDOPS_DECLARE_KERNEL(                                                                                      \
      void spline_rows(const SplineRowsArgs<T>& args, int64_t begin, int64_t end, const SplineRows<T>& out)) \
  MDOPS_DECLARE_KERNEL(void spline_row_gradients(const SplineRowsArgs<T>& args, int64_t begin, int64_t end,  \
                                                 const SplineRows<T, const T*>& grad, T* out))               \
  MDOPS_DECLARE_KERNEL(void row_moments(const RowMomentArgs<T>& args, int64_t begin, int64_t end, T* out))   \
  MDOPS_DECLARE_KERNEL(void row_moment_gradients(const RowMomentArgs<T>& args, const T* grad, int64_t begin, \
                                                 int64_t end, T* environment, T* g))
MDOPS_NEIGHBOR_ROWS_KERNELS(float)
MDOPS_NEIGHBOR_ROWS_KERNELS(double)

}  // namespace mdops
