// The arguments of the four spline moment ops, checked at entry.
#pragma once

#include <cmath>

#include "common/descriptor_args.h"
#include "spline_moment/spline_moment.h"

namespace mdops {

// The intervals that a gradient of moments (N, ntypes, intervals + 5, columns) tells; 0 if it has another
// shape.
inline int64_t intervals_of(const Tensor& grad) {
  return grad.dim() == 4 ? grad.size(2) - 5 : 0;
}

struct MomentInputs : DescriptorInputs {
  Tensor mean;
  double s_max;
  int64_t intervals;
  bool radial;

  MomentInputs(const Op& op, const Tensor& displacements, const Tensor& counts, const Tensor& types,
               const Tensor& mean_, const Tensor& std, const Tensor& pair_mask, double cutoff,
               double cutoff_smooth, double protection, double s_max_, int64_t intervals_, bool radial_)
      : DescriptorInputs(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection),
        mean(input(op, "mean", mean_, dtype, {ntypes})),
        s_max(s_max_),
        intervals(intervals_),
        radial(radial_) {
    if (!(s_max > 0) || !std::isfinite(s_max) || intervals < 1 || intervals > 100000)
      fail(op, "arguments `s_max` and `intervals` are " + std::to_string(s_max) + " and " +
                   std::to_string(intervals) + ", expected s_max > 0 and intervals in 1 .. 100000");
  }

  int64_t basis() const { return intervals + 5; }
  int64_t columns() const { return radial ? 1 : 4; }
  Tensor grad(const Op& op, const Tensor& tensor) const {
    return input(op, "grad", tensor, dtype, {atoms, ntypes, basis(), columns()});
  }
  Tensor pair_tensor(const Op& op, const char* name, const Tensor& tensor) const {
    return input(op, name, tensor, dtype, {atoms, width, 3});
  }

  template <class T>
  MomentArgs<T> args() const {
    return {displacements.const_data_ptr<T>(),
            counts.const_data_ptr<int32_t>(),
            types.const_data_ptr<int32_t>(),
            mean.const_data_ptr<T>(),
            std.const_data_ptr<T>(),
            reinterpret_cast<const uint8_t*>(pair_mask.const_data_ptr<bool>()),
            cutoff_as<T>(),
            {static_cast<T>(intervals / s_max), static_cast<int>(intervals)},
            width,
            static_cast<int>(ntypes),
            radial};
  }
};

}  // namespace mdops
