// The arguments of the ops on harmonic moments, checked at entry.
#pragma once

#include <string>
#include <vector>

#include "harmonic_moment/harmonic_moment.h"
#include "neighbor_rows/inputs.h"

namespace mdops {

struct HarmonicMomentInputs {
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
      fail(op, "argument `cutoff` is " + std::to_string(cutoff) + " A, expected a finite number > 0");
    if (intervals < 1 || intervals > 100000)
      fail(op, "argument `intervals` is " + std::to_string(intervals) + ", expected 1 .. 100000");
    if (degree < kLeastMomentDegree || degree > kMostDegrees)
      fail(op, "argument `degree` is " + std::to_string(degree) + ", expected 2, 3 or 4");
    if (list.ntypes * padded_basis(intervals) > INT32_MAX)
      fail(op, "argument `counts` has more types than 32 bits count splines of");
  }

  int64_t components() const { return components_to(static_cast<int>(degree)); }
  std::vector<int64_t> shape() const {
    return {list.atoms, components(), list.ntypes, padded_basis(intervals)};
  }
  Tensor grad(const Op& op, const char* name, const Tensor& tensor) const {
    return input(op, name, tensor, list.dtype,
                 {list.atoms, components(), list.ntypes, padded_basis(intervals)});
  }

  template <class T>
  HarmonicMomentArgs<T> args() const {
    return {list.displacements.const_data_ptr<T>(),
            list.counts.const_data_ptr<int32_t>(),
            list.types.const_data_ptr<int32_t>(),
            pair_mask.const_data_ptr<bool>(),
            static_cast<T>(cutoff),
            {static_cast<T>(intervals / cutoff), static_cast<int>(intervals)},
            list.atoms,
            list.width,
            padded_basis(intervals),
            static_cast<int>(list.ntypes),
            static_cast<int>(degree)};
  }
};

}  // namespace mdops
