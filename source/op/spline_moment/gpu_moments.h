// Spline moments on a GPU, a warp an atom, for every kernel that computes them or their gradients. Forward,
// each lane prepares one neighbour (geometry, basis functions), then the lanes add one neighbour at a time to
// sums. Backward, each lane gathers for one neighbour.
#pragma once

#include "common/rows.h"
#include "spline_moment/spline_moment.h"

namespace mdops {

constexpr int kUnroll = 4;  // neighbours that a lane reads ahead

// Numbers read and written together.
template <class T, int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Pack {
  T of[N];
};

// How the lanes share sums [basis][Columns] while they add neighbours: a group of lanes adds one neighbour,
// each of its lanes `Width` numbers of one basis function modulo 8, and every group has sums of its own,
// `Copies` in all. So a number always belongs to the same lane, and the lanes of a group to different banks:
// no two lanes ever meet. With Columns = 4, Width = 1 a neighbour takes the whole warp,
//
//   lane m + 8 a:  functions m, m + 8, m + 16, ..., column a;
//
// with Width = 2 half of it, and lane m + 8 a of the half has columns 2 a and 2 a + 1. A neighbour has six
// functions in sequence: two of the eight m have none, and add zero to the two functions after them. So sums
// have two rows beyond the last.
template <int Columns_, int Width, int Copies>
struct Sharing {
  static constexpr int kColumns = Columns_, kWidth = Width, kGroup = 8 * Columns_ / Width, kCopies = Copies;
  static_assert(kGroup * Copies <= kWarp);
};

// The neighbours prepared by the lanes of a warp: basis values (two lines of them always zero), rows of R,
// and the first row of the sums for each; with tangents also the derivatives of both.
template <class T, bool Tangent>
struct alignas(16) Staged {
  static constexpr int kWords = Tangent ? 2 : 1;
  Pack<T, 4> row[kWords][kWarp];
  T basis[kWords][kSplineSupport + 2][kWarp + 1];
  int32_t first[kWarp];
};

template <class T, bool Tangent>
MDOPS_D void clear_lines(Staged<T, Tangent>* stage) {
  for (int word = 0; word <= Tangent; ++word)
    for (int m = kSplineSupport; m < kSplineSupport + 2; ++m) stage->basis[word][m][lane_index()] = T(0);
}

// Stages this lane's neighbour at place `k`; `table` is the first row of its type's sums. Returns the first
// row to which it adds. With `Gated` the row is that with a gate; w gets the gate in any case.
template <bool Gated, class T, bool Tangent>
MDOPS_D int prepare(const Cutoff<T>& cutoff, const SplineGrid<T>& grid, const Normalisation<T>& norm,
                    int table, const T* d, const T* tangent, int k, Staged<T, Tangent>* stage, T* w) {
  const RadialTerms<T> f = radial_terms(squared_length(d), cutoff);
  const SplinePlace<T> place = spline_place(f.s, grid);
  T value[kSplineSupport], slope[kSplineSupport];
  if (Tangent || place.beyond > T(0))
    spline_basis(place, value, slope);
  else
    spline_values(place.t, value);
  Pack<T, 4> row;
  env_row(d, f, norm, row.of);
  const Pack<T, 4> plain = row;
  *w = f.w;
  if constexpr (Gated)
    for (int a = 0; a < 4; ++a) row.of[a] *= f.w;
  stage->row[0][k] = row;
  const int first = table + place.interval;
  stage->first[k] = first;
  for (int m = 0; m < kSplineSupport; ++m) stage->basis[0][m][k] = value[m];
  if constexpr (Tangent) {
    T ds;
    env_row_jvp(d, tangent, f, norm, row.of, &ds);
    if constexpr (Gated) gate_row_jvp(d, tangent, f, plain.of, row.of);
    stage->row[1][k] = row;
    for (int m = 0; m < kSplineSupport; ++m) stage->basis[1][m][k] = slope[m] * ds;
  }
  return first;
}

// Place `k` of the stage without a neighbour: it adds zero.
template <class T, bool Tangent>
MDOPS_D void leave_empty(int k, Staged<T, Tangent>* stage) {
  stage->first[k] = 0;
  for (int word = 0; word <= Tangent; ++word) {
    stage->row[word][k] = Pack<T, 4>{};
    for (int m = 0; m < kSplineSupport; ++m) stage->basis[word][m][k] = T(0);
  }
}

// Adds `count` staged neighbours to sums, whose copies are `apart` numbers from each other; the places up to
// a multiple of kUnroll * kCopies are empty. `Bounded`: the sums have no extra rows.
template <class Lanes, bool Bounded, class T, bool Tangent>
MDOPS_D void add_staged(const Staged<T, Tangent>& stage, int count, int apart, T* sums) {
  constexpr int Columns = Lanes::kColumns;
  using Numbers = Pack<T, Lanes::kWidth>;
  const int copy = lane_index() / Lanes::kGroup, within = lane_index() % Lanes::kGroup;
  const int residue = within % 8, column = within / 8 * Lanes::kWidth;
  if (copy >= Lanes::kCopies) return;
  T* mine = sums + copy * apart + column;
  for (int begin = copy; begin < count; begin += kUnroll * Lanes::kCopies) {
    int at[kUnroll];
    T value[kUnroll], slope[kUnroll];
    Numbers row[kUnroll], drow[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = begin + u * Lanes::kCopies, first = stage.first[k], m = (residue - first) & 7;
      at[u] = !Bounded || m < kSplineSupport ? (first + m) * Columns : -1;
      value[u] = stage.basis[0][m][k];
      row[u] = *reinterpret_cast<const Numbers*>(stage.row[0][k].of + column);
      if constexpr (Tangent) {
        slope[u] = stage.basis[1][m][k];
        drow[u] = *reinterpret_cast<const Numbers*>(stage.row[1][k].of + column);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (Bounded && at[u] < 0) continue;
      Numbers* place = reinterpret_cast<Numbers*>(mine + at[u]);
      Numbers sum = *place;
      for (int a = 0; a < Lanes::kWidth; ++a) {
        if constexpr (Tangent)
          sum.of[a] += value[u] * drow[u].of[a] + slope[u] * row[u].of[a];
        else
          sum.of[a] += value[u] * row[u].of[a];
      }
      *place = sum;
    }
  }
}

// P_a = sum_m weights[m] grad[m][a] of one neighbour, four numbers.
template <int Columns, bool Aligned, class T>
MDOPS_D void contract(const T* grad, const T* weights, T* p) {
  for (int a = 0; a < 4; ++a) p[a] = T(0);
#pragma unroll
  for (int m = 0; m < kSplineSupport; ++m) {
    if constexpr (Columns == 1) {
      p[0] += weights[m] * grad[m];
    } else if constexpr (Aligned && sizeof(T) == 4) {
      const float4 g = reinterpret_cast<const float4*>(grad)[m];
      p[0] += weights[m] * g.x, p[1] += weights[m] * g.y, p[2] += weights[m] * g.z, p[3] += weights[m] * g.w;
    } else if constexpr (Aligned) {
      const double2 low = reinterpret_cast<const double2*>(grad)[2 * m];
      const double2 high = reinterpret_cast<const double2*>(grad)[2 * m + 1];
      p[0] += weights[m] * low.x, p[1] += weights[m] * low.y;
      p[2] += weights[m] * high.x, p[3] += weights[m] * high.y;
    } else {
      for (int a = 0; a < 4; ++a) p[a] += weights[m] * grad[4 * m + a];
    }
  }
}

// The gradient of one pair vector from the gradient of the moments of its type, or with `Second` the Hessian
// of <grad, moments> times the pair's tangent. `Aligned`: grad can be read 16 bytes at a time. Moments side
// by side have the gradient of the plain ones in `beside`.
template <int Columns, Gate G, bool Second, bool Aligned, class T>
MDOPS_D void pull(const Cutoff<T>& cutoff, const SplineGrid<T>& grid, const Normalisation<T>& norm,
                  const T* grad, const T* beside, const T* d, const T* tangent, T* out) {
  static_assert(!Second || G != Gate::beside);
  const RadialTerms<T> f = radial_terms(squared_length(d), cutoff);
  const SplinePlace<T> place = spline_place(f.s, grid);
  T weights[2][kSplineSupport], p[4], dp[4];
  spline_basis(place, weights[0], weights[1]);
  const T* rows = grad + Columns * place.interval;
  contract<Columns, Aligned>(rows, weights[0], p);
  contract<Columns, Aligned>(rows, weights[1], dp);
  if constexpr (Second) {
    T ddp[4];
    spline_basis_second(place, weights[1], weights[0]);
    contract<Columns, Aligned>(rows, weights[0], ddp);
    pair_hessian_product(d, tangent, f, norm, p, dp, ddp, out);
    if constexpr (G == Gate::alone) gate_pair_hessian(d, tangent, f, norm, p, dp, out);
  } else if constexpr (G == Gate::none) {
    pair_gradient(d, f, norm, p, dp, out);
  } else {
    T row[4], value = 0;
    env_row(d, f, norm, row);
    for (int a = 0; a < 4; ++a) value += p[a] * row[a], p[a] *= f.w, dp[a] *= f.w;
    if constexpr (G == Gate::beside) {
      T plain[4];
      contract<Columns, Aligned>(beside + Columns * place.interval, weights[0], plain);
      for (int a = 0; a < 4; ++a) p[a] += plain[a];
      contract<Columns, Aligned>(beside + Columns * place.interval, weights[1], plain);
      for (int a = 0; a < 4; ++a) dp[a] += plain[a];
    }
    pair_gradient(d, f, norm, p, dp, out);
    add_gate_slope(d, f, value, out);
  }
}

}  // namespace mdops
