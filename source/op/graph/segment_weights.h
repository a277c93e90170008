// Shares of the rows of each segment, separately for each column, with a further share for no row. With
// weights w of rows and a positive n of the column,
//
//   Z = sum w exp(x) + n     t = exp(x) / Z, 0 where w is     y = w t     u = 1 / Z
//
// Backward, for the gradient g by y and G = sum g y:
//
//   by x  y (g - G)      by w  t (g - G)      by n  -G u, of each segment
//
// Second derivative, for gradients a, b and c by them, with q = a y + b t, A = sum q + c u, P = sum g q:
//
//   by g  q - y A                                  by x  q (g - G) - y (P - 2 A G + A g)
//   by w  t (a (g - G) - P + 2 A G - A g)          by n  u (2 A G - P)
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "common/math.h"

namespace mdops {

template <class T>
struct SegmentWeightArgs {
  int64_t rows, columns, segments;
  const int32_t* offsets;                           // (segments + 1,)
  const T *x, *weight, *nothing;                    // (rows, columns), (rows,), (columns,)
  const T* grad;                                    // g, or null
  const T *along_x, *along_weight, *along_nothing;  // a and b as x, c (segments, columns), or null
  T* y;                                             // as x: y, or the gradient by x
  T *by_grad, *by_weight, *by_nothing;              // as x, as x, and (segments, columns)
  T least = std::numeric_limits<T>::min();          // a weight up to it counts as zero

  MDOPS_HD bool fits(int64_t segment) const {
    return offsets[segment] >= 0 && offsets[segment] <= offsets[segment + 1] && offsets[segment + 1] <= rows;
  }

  // Sets all results of a row, or of a segment.
  MDOPS_HD void fill(int64_t at, T value) const {
    y[at] = value;
    if (by_weight) by_weight[at] = value;
    if (by_grad) by_grad[at] = value;
  }
};

template <class T, class Team>
struct SegmentColumn {
  const SegmentWeightArgs<T>& args;
  const Team& team;
  int64_t begin, count, column;
  T most, inverse;  // of logarithms; 1 / Z, where all are less by that

  MDOPS_HD SegmentColumn(const SegmentWeightArgs<T>& all, int64_t segment, int64_t column_,
                         const Team& members)
      : args(all),
        team(members),
        begin(all.offsets[segment]),
        count(all.offsets[segment + 1] - begin),
        column(column_) {
    T own = std::log(args.nothing[column]);
    team.each(count, [&](int64_t k) {
      if (!is_there(k)) return;
      const T x = args.x[at(k)] + std::log(args.weight[begin + k]);
      own = own < x ? x : own;
    });
    most = team.max(own);
    T sum = 0;
    team.each(count, [&](int64_t k) {
      if (is_there(k)) sum += args.weight[begin + k] * std::exp(args.x[at(k)] - most);
    });
    inverse = T(1) / (team.sum(sum) + args.nothing[column] * std::exp(-most));
  }

  MDOPS_HD int64_t at(int64_t k) const { return (begin + k) * args.columns + column; }
  MDOPS_HD bool is_there(int64_t k) const { return !(args.weight[begin + k] <= args.least); }
  MDOPS_HD T t(int64_t k) const { return is_there(k) ? std::exp(args.x[at(k)] - most) * inverse : T(0); }

  MDOPS_HD void forward() const {
    team.each(count, [&](int64_t k) { args.y[at(k)] = args.weight[begin + k] * t(k); });
  }

  // G.
  MDOPS_HD T along() const {
    T sum = 0;
    team.each(count, [&](int64_t k) { sum += args.grad[at(k)] * args.weight[begin + k] * t(k); });
    return team.sum(sum);
  }

  MDOPS_HD void backward(T* by_nothing) const {
    const T all = along();
    team.each(count, [&](int64_t k) {
      const T by_weight = t(k) * (args.grad[at(k)] - all);
      args.by_weight[at(k)] = by_weight, args.y[at(k)] = args.weight[begin + k] * by_weight;
    });
    team.each(1, [&](int64_t) { *by_nothing = -all * inverse * std::exp(-most); });
  }

  MDOPS_HD void twice(T along_nothing, T* by_nothing) const {
    const auto q = [&](int64_t k) {
      return t(k) * (args.along_x[at(k)] * args.weight[begin + k] + args.along_weight[at(k)]);
    };
    const T all = along(), u = inverse * std::exp(-most);
    T sum = 0, product = 0;
    team.each(count, [&](int64_t k) { sum += q(k), product += q(k) * args.grad[at(k)]; });
    sum = team.sum(sum) + along_nothing * u, product = team.sum(product);
    const T both = product - T(2) * sum * all;
    team.each(count, [&](int64_t k) {
      const T own = t(k), g = args.grad[at(k)], y = args.weight[begin + k] * own, less = both + sum * g;
      args.by_grad[at(k)] = q(k) - y * sum;
      args.by_weight[at(k)] = own * (args.along_x[at(k)] * (g - all) - less);
      args.y[at(k)] = q(k) * (g - all) - y * less;
    });
    team.each(1, [&](int64_t) { *by_nothing = -u * both; });
  }
};

template <class T, class Team>
MDOPS_HD void weigh_segment(const SegmentWeightArgs<T>& args, int64_t segment, int64_t column,
                            const Team& team) {
  const SegmentColumn<T, Team> own(args, segment, column, team);
  const int64_t at = segment * args.columns + column;
  if (args.along_x)
    own.twice(args.along_nothing[at], args.by_nothing + at);
  else if (args.grad)
    own.backward(args.by_nothing + at);
  else
    own.forward();
}

}  // namespace mdops
