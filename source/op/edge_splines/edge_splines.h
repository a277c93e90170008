// Functions of an edge's length as splines. An edge e is of one of several kinds k(e), -1 of none, each of
// which has a table of P functions on [0, cutoff]:
//
//   y[e, p] = sum_b phi_b(r[e]) table[k(e), b, p]        (E,) to (E, P); 0 for -1
//
// phi_b are the uniform quintic B-splines (spline_moment/spline.h); beyond the cutoff a function is
// linear. Backward, a length gets the sum over p of the gradient by y[e, p] times the function's slope.
#pragma once

#include "common/isa.h"
#include "spline_moment/spline.h"

namespace mdops {

template <class T>
struct EdgeSplineArgs {
  int64_t edges, functions, kinds;  // E, P, K
  SplineGrid<T> grid;
  const T* lengths;         // (E,)
  const int32_t* of_edges;  // (E,) kinds
  const T *table, *grad;    // (K, intervals + 5, P); (E, P), or null
  T* out;                   // (E, P), or (E,)

  MDOPS_HD bool is_right(int64_t e) const { return of_edges[e] >= -1 && of_edges[e] < kinds; }
  MDOPS_HD bool is_none(int64_t e) const { return of_edges[e] < 0; }
  MDOPS_HD const T* rows(int64_t e, int interval) const {
    return table + (static_cast<int64_t>(of_edges[e]) * (grid.intervals + 5) + interval) * functions;
  }
};

// The six weights at a length, of values or of slopes by it, and their interval.
template <class T>
MDOPS_HD int spline_weights(T length, const SplineGrid<T>& grid, bool slope, T* weights) {
  const SplinePlace<T> place = spline_place<false>(length, grid);
  T slopes[kSplineSupport];
  spline_slopes(place.t, slopes);
  if (slope) {
    // NaN lengths show only in the distance beyond the cutoff.
    const T rate = place.rate + T(0) * place.beyond;
    for (int b = 0; b < kSplineSupport; ++b) weights[b] = rate * slopes[b];
  } else {
    spline_values(place.t, weights);
    for (int b = 0; b < kSplineSupport; ++b) weights[b] += place.beyond * slopes[b];
  }
  return place.interval;
}

// An edge's weights, and the first of its rows of coefficients.
template <class T>
struct EdgeSpline {
  T weights[kSplineSupport];
  const T* rows;

  MDOPS_HD EdgeSpline(const EdgeSplineArgs<T>& args, int64_t e, bool slope)
      : rows(args.rows(e, spline_weights(args.lengths[e], args.grid, slope, weights))) {}
};

// Edges [from, to) on a CPU.
MDOPS_DECLARE_KERNELS(void edge_spline_rows(const EdgeSplineArgs<T>& args, int64_t from, int64_t to))

}  // namespace mdops
