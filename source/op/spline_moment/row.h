// The vectorised loops over one atom's neighbours, for one instruction set: geometry and basis for many
// neighbours at once, then one neighbour at a time into or out of the moments.
#pragma once

#include "common/vectors.h"
#include "spline_moment/spline_moment.h"

namespace mdops::MDOPS_ISA {

constexpr int kChunk = 128;  // neighbours at once: their working set stays in the first-level cache

// Structures are passed by value below: through a reference the compiler assumes that every store changes
// them, and does not vectorise.

// Up to kChunk neighbours within the cutoff: pair vectors, and each one's first basis row in the moments.
template <class T>
struct Pairs {
  const T *x, *y, *z;
  const int32_t* table;
  int size;
};

template <class T>
struct Centre {
  Normalisation<T> norm;
  Cutoff<T> cutoff;
  SplineGrid<T> grid;
};

template <class T>
MDOPS_HD RadialTerms<T> pair_terms(const Pairs<T>& p, int k, const Cutoff<T>& cutoff, T* d) {
  d[0] = p.x[k];
  d[1] = p.y[k];
  d[2] = p.z[k];
  return radial_terms(d[0] * d[0] + d[1] * d[1] + d[2] * d[2], cutoff);
}

// To how many moments a neighbour adds, and where: last in its type's table, before that in plain ones.
template <Gate G>
constexpr int kTables = G == Gate::beside ? 2 : 1;

template <Gate G, class T>
MDOPS_HD int64_t first_row(const Pairs<T>& p, const int32_t* first, int k, int table) {
  return table + 1 < kTables<G> ? first[k] - p.table[k] : first[k];
}

// Adds phi_b(s) R_a of each neighbour to the moments (rows of `Columns`: 4, or 1 when radial); first[k] is
// the first of the kSplineSupport rows that neighbour k adds to, in the table of its type.
template <int Columns, Gate G, bool Graded, class T>
inline void add_moments_on(const Pairs<T> p, const Centre<T> c, T* moments, int32_t* first) {
  constexpr int tables = kTables<G>;
  alignas(64) T w[kSplineSupport][kChunk], row[tables][4][kChunk];
  MDOPS_INDEPENDENT
  for (int k = 0; k < p.size; ++k) {
    T d[3], r[4], value[kSplineSupport], slope[kSplineSupport];
    const RadialTerms<T> f = pair_terms(p, k, c.cutoff, d);
    env_row(d, f, c.norm, r);
    const SplinePlace<T> place = spline_place<Graded>(f.s, c.grid);
    spline_basis(place, value, slope);
    first[k] = p.table[k] + place.interval;
    for (int a = 0; a < 4; ++a) {
      row[0][a][k] = r[a];
      if constexpr (G != Gate::none) row[tables - 1][a][k] = f.w * r[a];
    }
    for (int m = 0; m < kSplineSupport; ++m) w[m][k] = value[m];
  }
  for (int k = 0; k < p.size; ++k)
    for (int table = 0; table < tables; ++table) {
      T* out = moments + Columns * first_row<G>(p, first, k, table);
      if constexpr (Columns == 1) {
        for (int m = 0; m < kSplineSupport; ++m) out[m] += w[m][k] * row[table][0][k];
      } else {
        using V = Vector4<T>;
        const V r = {row[table][0][k], row[table][1][k], row[table][2][k], row[table][3][k]};
        for (int m = 0; m < kSplineSupport; ++m) store(out + 4 * m, load<V>(out + 4 * m) + r * w[m][k]);
      }
    }
}

template <int Columns, Gate G, class T>
inline void add_moments(const Pairs<T> p, const Centre<T> c, T* moments, int32_t* first) {
  c.grid.grading > T(0) ? add_moments_on<Columns, G, true>(p, c, moments, first)
                        : add_moments_on<Columns, G, false>(p, c, moments, first);
}

// The same along the tangents of the pair vectors: d/de of the moments at d + e v.
template <int Columns, Gate G, bool Graded, class T>
inline void add_moments_jvp_on(const Pairs<T> p, const Pairs<T> v, const Centre<T> c, T* moments) {
  constexpr int tables = kTables<G>;
  alignas(64) T w[kSplineSupport][kChunk], dw[kSplineSupport][kChunk];
  alignas(64) T row[tables][4][kChunk], drow[tables][4][kChunk];
  alignas(64) int32_t first[kChunk];
  MDOPS_INDEPENDENT
  for (int k = 0; k < p.size; ++k) {
    T d[3], r[4], dr[4], ds, value[kSplineSupport], slope[kSplineSupport];
    const T tangent[3] = {v.x[k], v.y[k], v.z[k]};
    const RadialTerms<T> f = pair_terms(p, k, c.cutoff, d);
    env_row(d, f, c.norm, r);
    env_row_jvp(d, tangent, f, c.norm, dr, &ds);
    const SplinePlace<T> place = spline_place<Graded>(f.s, c.grid);
    spline_basis(place, value, slope);
    first[k] = p.table[k] + place.interval;
    for (int a = 0; a < 4; ++a) row[0][a][k] = r[a], drow[0][a][k] = dr[a];
    if constexpr (G != Gate::none) {
      gate_row_jvp(d, tangent, f, r, dr);
      for (int a = 0; a < 4; ++a) row[tables - 1][a][k] = f.w * r[a], drow[tables - 1][a][k] = dr[a];
    }
    for (int m = 0; m < kSplineSupport; ++m) w[m][k] = value[m], dw[m][k] = slope[m] * ds;
  }
  for (int k = 0; k < p.size; ++k)
    for (int table = 0; table < tables; ++table) {
      T* out = moments + Columns * first_row<G>(p, first, k, table);
      for (int m = 0; m < kSplineSupport; ++m)
        for (int a = 0; a < Columns; ++a)
          out[Columns * m + a] += w[m][k] * drow[table][a][k] + dw[m][k] * row[table][a][k];
    }
}

template <int Columns, Gate G, class T>
inline void add_moments_jvp(const Pairs<T> p, const Pairs<T> v, const Centre<T> c, T* moments) {
  c.grid.grading > T(0) ? add_moments_jvp_on<Columns, G, true>(p, v, c, moments)
                        : add_moments_jvp_on<Columns, G, false>(p, v, c, moments);
}

// Contracts the moments' gradient with `weights` (basis values or their derivatives) of neighbour k.
template <int Columns, class T>
MDOPS_HD void contract(const T* grad, const T (*weights)[kChunk], int k, T (*out)[kChunk]) {
  if constexpr (Columns == 1) {
    T sum = 0;
    for (int m = 0; m < kSplineSupport; ++m) sum += weights[m][k] * grad[m];
    out[0][k] = sum;
    for (int a = 1; a < 4; ++a) out[a][k] = 0;
  } else {
    using V = Vector4<T>;
    V sum = load<V>(grad) * weights[0][k];
    for (int m = 1; m < kSplineSupport; ++m) sum += load<V>(grad + 4 * m) * weights[m][k];
    for (int a = 0; a < 4; ++a) out[a][k] = sum[a];
  }
}

// The gradient of each pair vector, from the moments' gradient.
template <int Columns, Gate G, bool Graded, class T>
inline void pull_gradient_on(const Pairs<T> p, const Centre<T> c, const T* grad, T* gx, T* gy, T* gz) {
  constexpr int tables = kTables<G>;
  alignas(64) T w[kSplineSupport][kChunk], dw[kSplineSupport][kChunk];
  alignas(64) T value[tables][4][kChunk], slope[tables][4][kChunk];
  alignas(64) int32_t first[kChunk];
  MDOPS_INDEPENDENT
  for (int k = 0; k < p.size; ++k) {
    T d[3], phi[kSplineSupport], dphi[kSplineSupport];
    const RadialTerms<T> f = pair_terms(p, k, c.cutoff, d);
    const SplinePlace<T> place = spline_place<Graded>(f.s, c.grid);
    spline_basis(place, phi, dphi);
    first[k] = p.table[k] + place.interval;
    for (int m = 0; m < kSplineSupport; ++m) w[m][k] = phi[m], dw[m][k] = dphi[m];
  }
  for (int k = 0; k < p.size; ++k)
    for (int table = 0; table < tables; ++table) {
      const T* g = grad + Columns * first_row<G>(p, first, k, table);
      contract<Columns>(g, w, k, value[table]);
      contract<Columns>(g, dw, k, slope[table]);
    }
  MDOPS_INDEPENDENT
  for (int k = 0; k < p.size; ++k) {
    T d[3], g[3], pk[4], dpk[4];
    const RadialTerms<T> f = pair_terms(p, k, c.cutoff, d);
    for (int a = 0; a < 4; ++a) {
      pk[a] = value[0][a][k], dpk[a] = slope[0][a][k];
      if constexpr (G == Gate::alone) pk[a] *= f.w, dpk[a] *= f.w;
      if constexpr (G == Gate::beside) pk[a] += f.w * value[1][a][k], dpk[a] += f.w * slope[1][a][k];
    }
    pair_gradient(d, f, c.norm, pk, dpk, g);
    if constexpr (G != Gate::none) {
      T r[4], sum = 0;
      env_row(d, f, c.norm, r);
      for (int a = 0; a < 4; ++a) sum += value[tables - 1][a][k] * r[a];
      add_gate_slope(d, f, sum, g);
    }
    gx[k] = g[0], gy[k] = g[1], gz[k] = g[2];
  }
}

template <int Columns, Gate G, class T>
inline void pull_gradient(const Pairs<T> p, const Centre<T> c, const T* grad, T* gx, T* gy, T* gz) {
  c.grid.grading > T(0) ? pull_gradient_on<Columns, G, true>(p, c, grad, gx, gy, gz)
                        : pull_gradient_on<Columns, G, false>(p, c, grad, gx, gy, gz);
}

// The Hessian of <grad, moments> in each pair vector, times its tangent; not of moments side by side.
template <int Columns, Gate G, class T>
inline void pull_hessian_product(const Pairs<T> p, const Pairs<T> v, const Centre<T> c, const T* grad, T* gx,
                                 T* gy, T* gz) {
  static_assert(G != Gate::beside);
  alignas(64) T w[3][kSplineSupport][kChunk], sums[3][4][kChunk];
  for (int k = 0; k < p.size; ++k) {
    T d[3], phi[kSplineSupport], dphi[kSplineSupport], ddphi[kSplineSupport];
    const RadialTerms<T> f = pair_terms(p, k, c.cutoff, d);
    const SplinePlace<T> place = spline_place(f.s, c.grid);
    spline_basis(place, phi, dphi);
    spline_basis_second(place, dphi, ddphi);
    for (int m = 0; m < kSplineSupport; ++m) w[0][m][k] = phi[m], w[1][m][k] = dphi[m], w[2][m][k] = ddphi[m];
    const T* g = grad + Columns * static_cast<int64_t>(p.table[k] + place.interval);
    for (int order = 0; order < 3; ++order) contract<Columns>(g, w[order], k, sums[order]);
  }
  MDOPS_INDEPENDENT
  for (int k = 0; k < p.size; ++k) {
    T d[3], g[3], q[3][4];
    const T tangent[3] = {v.x[k], v.y[k], v.z[k]};
    const RadialTerms<T> f = pair_terms(p, k, c.cutoff, d);
    for (int order = 0; order < 3; ++order)
      for (int a = 0; a < 4; ++a) q[order][a] = sums[order][a][k];
    pair_hessian_product(d, tangent, f, c.norm, q[0], q[1], q[2], g);
    if constexpr (G != Gate::none) gate_pair_hessian(d, tangent, f, c.norm, q[0], q[1], g);
    gx[k] = g[0], gy[k] = g[1], gz[k] = g[2];
  }
}

}  // namespace mdops::MDOPS_ISA
