// Functions of an edge's length as splines. An edge e is of one of several kinds k(e), -1 of none, each of
// which has a table of P functions on [0, cutoff]:
//
//   y[e, p] = sum_b phi_b(r[e]) table[k(e), b, p]        (E,) to (E, P); 0 for -1
//
// phi_b are the uniform quintic B-splines (spline_moment/spline.h); beyond the cutoff a function goes on
// along its tangent there. Backward a length has the sum over p of the gradient by y[e, p] times the
// function's slope.
#pragma once

#include <cstdint>

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
};

// The six weights of an edge, of values or of slopes by its length, and the first of the rows of coefficients
// that they belong to.
template <class T>
struct EdgeSpline {
  T weights[kSplineSupport];
  const T* rows;

  MDOPS_HD EdgeSpline(const EdgeSplineArgs<T>& args, int64_t e, bool slope) {
    const SplinePlace<T> place = spline_place<false>(args.lengths[e], args.grid);
    if (slope) {
      // A length that is not a number is one only in how far it is beyond the cutoff.
      const T rate = place.rate + T(0) * place.beyond;
      spline_slopes(place.t, weights);
      for (T& weight : weights) weight *= rate;
    } else {
      T slopes[kSplineSupport];
      spline_values(place.t, weights);
      spline_slopes(place.t, slopes);
      for (int b = 0; b < kSplineSupport; ++b) weights[b] += place.beyond * slopes[b];
    }
    const int64_t first = static_cast<int64_t>(args.of_edges[e]) * (args.grid.intervals + 5) + place.interval;
    rows = args.table + first * args.functions;
  }
};

}  // namespace mdops
