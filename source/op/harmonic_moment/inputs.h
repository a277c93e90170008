// The arguments of the ops on harmonic moments, checked at entry.
#pragma once

#include "harmonic_moment/harmonic_moment.h"
#include "neighbor_rows/inputs.h"

namespace mdops {

struct HarmonicMomentInputs {
  static constexpr const char* kFirst = "displacements";
  using Given = Listed<Times<4, const Tensor&>, double, Times<2, int64_t>>;

  SlotInputs list;
  Tensor pair_mask;
  double cutoff;
  int64_t intervals, degree;

  HarmonicMomentInputs(const Op& op, const Tensor& displacements, const Tensor& counts, const Tensor& types,
                       const Tensor& pair_mask_, double cutoff_, int64_t intervals_, int64_t degree_)
      : list(op, displacements, counts, types),
        pair_mask(input(op, "pair_mask", pair_mask_, ScalarType::Bool, {list.ntypes, list.ntypes})),
        cutoff(cutoff_),
        intervals(intervals_),
        degree(degree_) {
    if (!(cutoff > 0) || !std::isfinite(cutoff))
      fail(op, "argument `cutoff` is ", cutoff, " A, expected a finite number > 0");
    if (intervals < 1 || intervals > 100000)
      fail(op, "argument `intervals` is ", intervals, ", expected 1 .. 100000");
    if (degree < kLeastMomentDegree || degree > kMostDegrees)
      fail(op, "argument `degree` is ", degree, ", expected 2, 3 or 4");
    if (list.ntypes * padded_basis(intervals) > INT32_MAX)
      fail(op, "argument `counts` has more types than 32 bits count splines of");
  }

  int64_t components() const { return components_to(static_cast<int>(degree)); }

  template <class T>
  HarmonicMomentArgs<T> args() const {
    HarmonicMomentArgs<T> a{};
    a.displacements = data_of(list.displacements), a.counts = data_of(list.counts);
    a.types = data_of(list.types), a.pair_mask = data_of(pair_mask), a.cutoff = static_cast<T>(cutoff);
    a.grid = {static_cast<T>(intervals / cutoff), static_cast<int>(intervals)}, a.atoms = list.atoms;
    a.width = list.width, a.basis = padded_basis(intervals), a.ntypes = static_cast<int>(list.ntypes);
    a.degree = static_cast<int>(degree);
    return a;
  }
};

struct HarmonicSumInputs : HarmonicMomentInputs {
  using Given = Listed<Times<8, const Tensor&>, double, Times<3, int64_t>>;

  Tensor table, rows, slopes, pieces;
  int64_t seconds;

  HarmonicSumInputs(const Op& op, const Tensor& displacements, const Tensor& counts, const Tensor& types,
                    const Tensor& pair_mask, const Tensor& table_, const Tensor& rows_, const Tensor& slopes_,
                    const Tensor& pieces_, double cutoff, int64_t intervals, int64_t degree, int64_t seconds_)
      : HarmonicMomentInputs(op, displacements, counts, types, pair_mask, cutoff, intervals, degree),
        table(input(op, "table", table_, list.dtype, {list.ntypes, row(), kAny})),
        rows(input(op, "rows", rows_, list.dtype, {list.ntypes, table.size(2), row()})),
        slopes(input(op, "slopes", slopes_, list.dtype, {list.ntypes, table.size(2), row()})),
        pieces(input(op, "pieces", pieces_, list.dtype,
                     {list.ntypes, list.ntypes, intervals, kSplineSupport, kAny})),
        seconds(seconds_) {
    if (seconds < kLeastSeconds || seconds > kMostSeconds || (seconds & (seconds - 1)))
      fail(op, "argument `seconds` is ", seconds, ", expected 4, 8, 16 or 32");
    if (table.size(2) < seconds)
      fail(op, "argument `table` has ", table.size(2), " functions, expected `seconds`, ", seconds,
           ", at least");
    if (pieces.size(4) != table.size(2) && pieces.size(4) != seconds)
      fail(op, "argument `pieces` has ", pieces.size(4),
           " functions, expected those of `table` or `seconds` of them");
  }

  int64_t row() const { return list.ntypes * padded_basis(intervals); }
  std::vector<int64_t> first_shape() const { return {list.atoms, table.size(2) + 2}; }
  std::vector<int64_t> second_shape() const { return {list.atoms, components(), seconds}; }
  Tensor by_first(const Op& op, const Tensor& grad) const {
    return input(op, "by_first", grad, list.dtype, {list.atoms, table.size(2) + 2});
  }
  Tensor by_second(const Op& op, const Tensor& grad) const {
    return input(op, "by_second", grad, list.dtype, {list.atoms, components(), seconds});
  }

  template <class T>
  HarmonicSumArgs<T> sums() const {
    return {data_of(table), {data_of(rows), data_of(slopes)}, data_of(pieces), table.size(2), seconds,
            pieces.size(4)};
  }
};

}  // namespace mdops
