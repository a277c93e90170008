// The arguments of the four spline moment ops, checked at entry.
#pragma once

#include "common/descriptor_args.h"
#include "spline_moment/knots.h"
#include "spline_moment/spline_moment.h"

namespace mdops {

// `sel`, `zeroed` and `padding` of the ops whose descriptors have places, checked at entry.
struct PlaceInputs {
  Tensor zeroed, sel, padding;
  bool shared;  // by all types

  // `padding` is empty where each type has places of its own.
  PlaceInputs() = default;
  PlaceInputs(const Op& op, const Tensor& zeroed_, const Tensor& sel_, const Tensor& padding_, int64_t atoms,
              int64_t ntypes)
      : zeroed(input(op, "zeroed", zeroed_, ScalarType::Bool, {ntypes, ntypes})),
        sel(input(op, "sel", sel_, ScalarType::Int, {kAny})),
        padding(input(op, "padding", padding_, ScalarType::Int, {kAny})),
        shared(padding.size(0) > 0) {
    if (sel.size(0) != (shared ? 1 : ntypes) && !(atoms == 0 && sel.size(0) == 1))
      fail(op, "argument `sel` has ", sel.size(0), " numbers, expected ",
           (shared ? "1 beside `padding`" : "one for each type without `padding`"));
    if (shared && padding.size(0) != atoms)
      fail(op, "argument `padding` has ", padding.size(0), " types, expected none, or one for each of ",
           atoms, " atoms");
    check_range(op, "padding", padding, 0, ntypes);
  }

  Places places(const Tensor& pair_mask, int64_t ntypes) const {
    return {data_of(pair_mask), data_of(zeroed), data_of(sel), data_of(shared ? &padding : nullptr),
            static_cast<int>(ntypes)};
  }
};

// The intervals that a gradient of moments (N, ntypes, intervals + 5, columns) tells; 0 if it has another
// shape.
inline int64_t intervals_of(const Tensor& grad) {
  return grad.dim() == 4 ? grad.size(2) - 5 : 0;
}

struct MomentInputs : DescriptorInputs {
  Tensor mean;
  double s_max, grading;
  int64_t intervals;
  bool radial, gated;

  MomentInputs(const Op& op, const Tensor& displacements, const Tensor& counts, const Tensor& types,
               const Tensor& mean_, const Tensor& std, const Tensor& pair_mask, double cutoff,
               double cutoff_smooth, double protection, double s_max_, double grading_, int64_t intervals_,
               bool radial_, bool gated_)
      : DescriptorInputs(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection),
        mean(input(op, "mean", mean_, dtype, {ntypes})),
        s_max(s_max_),
        grading(grading_),
        intervals(intervals_),
        radial(radial_),
        gated(gated_) {
    if (radial && gated) fail(op, "argument `gated` is for all four columns, not for `radial` moments");
    check_knots(op, s_max, grading);
    if (intervals < 1 || intervals > 100000)
      fail(op, "argument `intervals` is ", intervals, ", expected 1 .. 100000");
  }

  int64_t basis() const { return intervals + 5; }
  int64_t columns() const { return radial ? 1 : 4; }
  Tensor grad(const Op& op, const Tensor& tensor) const {
    return input(op, "grad", tensor, dtype, {atoms, ntypes, basis(), columns()});
  }

  // With the places of the forward kernel.
  template <class T>
  MomentArgs<T> args(const PlaceInputs& of) const {
    MomentArgs<T> found = args<T>();
    found.places = of.places(pair_mask, ntypes);
    return found;
  }

  template <class T>
  MomentArgs<T> args() const {
    MomentArgs<T> a{};
    a.displacements = data_of(displacements), a.counts = data_of(counts), a.types = data_of(types);
    a.mean = data_of(mean), a.std = data_of(std);
    a.places = {data_of(pair_mask), nullptr, nullptr, nullptr, static_cast<int>(ntypes)};
    a.cutoff = cutoff_as<T>(), a.grid = spline_grid<T>(intervals, s_max, grading), a.width = width;
    a.ntypes = static_cast<int>(ntypes), a.radial = radial, a.gated = gated;
    return a;
  }
};

}  // namespace mdops
