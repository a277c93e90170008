// The ops on moments of splines.
#pragma once

#include "common/bind.h"
#include "common/descriptor_args.h"
#include "spline_moment/args.h"
#include "spline_moment/knots.h"
#include "spline_moment/spline_moment.h"

namespace mdops {

template <class Device, class T>
struct SplineMomentOps {
  struct Given : MomentArgs<T> {
    int64_t atoms;
    double s_max, grading;

    std::vector<int64_t> moments() const { return {atoms, this->ntypes, this->basis(), this->columns()}; }
    void take_intervals(const Op& op, int64_t intervals) {
      if (intervals < 1 || intervals > 100000)
        fail(op, "argument `intervals` is ", intervals, ", expected 1 .. 100000");
      this->grid = spline_grid<T>(intervals, s_max, grading);
    }
    // A gradient of moments, whose shape gives the intervals.
    const T* take_gradient(Checked<Device>& in, Input grad) {
      const T* found;
      in.take(found, "grad", grad, {atoms, this->ntypes, kAny, this->columns()});
      take_intervals(in.op, grad.size(2) - 5);
      return found;
    }
  };

  static Given arguments(Checked<Device>& in, PairTensors pairs, Input mean, Input std, Input pair_mask,
                         CutoffNumbers cutoff, double s_max, double grading, bool radial, bool gated) {
    Given a{};
    a.atoms = take_descriptor(in, a, a.places.pair_mask, pairs, std, pair_mask, cutoff);
    in.take(a.mean, "mean", mean, {a.ntypes});
    a.places.ntypes = a.ntypes, a.s_max = s_max, a.grading = grading, a.radial = radial, a.gated = gated;
    if (radial && gated) fail(in.op, "argument `gated` is for all four columns, not for `radial` moments");
    check_knots(in.op, s_max, grading);
    return a;
  }

  static Outputs<3> spline_moment(Checked<Device>& in, PairTensors pairs, Input mean, Input std,
                                  Input pair_mask, Input zeroed, Input sel, Input padding,
                                  CutoffNumbers cutoff, double s_max, double grading, int64_t intervals,
                                  bool radial, bool gated) {
    auto a = arguments(in, pairs, mean, std, pair_mask, cutoff, s_max, grading, radial, gated);
    a.take_intervals(in.op, intervals);
    const PlaceInputs places(in.op, zeroed, sel, padding, a.atoms, a.ntypes);
    a.places = places.places(a.places.pair_mask, a.ntypes);
    T *to, *least;
    int32_t* inside;
    Tensor moments = in.result(to, a.moments());
    Tensor within = in.result(inside, {a.atoms, a.ntypes}), nearest = in.result(least, {a.atoms});
    run_spline_moments<T>(in.op, a, a.atoms, to, inside, least);
    return {moments, within, nearest};
  }

  static Tensor spline_moment_backward(Checked<Device>& in, Given& a, Input grad) {
    return pulled(in, a, nullptr, a.take_gradient(in, grad));
  }

  static Tensor spline_moment_jvp(Checked<Device>& in, Input tangent, PairTensors pairs, Input mean,
                                  Input std, Input pair_mask, CutoffNumbers cutoff, double s_max,
                                  double grading, int64_t intervals, bool radial, bool gated) {
    auto a = arguments(in, pairs, mean, std, pair_mask, cutoff, s_max, grading, radial, gated);
    a.take_intervals(in.op, intervals);
    const T* along;
    in.take(along, "tangent", tangent, {a.atoms, a.width, 3});
    T* to;
    Tensor result = in.result(to, a.moments());
    run_spline_moment_tangents<T>(in.op, a, a.atoms, along, to);
    return result;
  }

  static Tensor spline_moment_hvp(Checked<Device>& in, Given& a, Input tangent, Input grad) {
    const T* along;
    in.take(along, "tangent", tangent, {a.atoms, a.width, 3});
    return pulled(in, a, along, a.take_gradient(in, grad));
  }

  MDOPS_IMPLEMENT_FLOATS(SplineMomentOps, spline_moment, spline_moment_backward, spline_moment_jvp,
                         spline_moment_hvp)

 private:
  static Tensor pulled(Checked<Device>& in, Given& a, const T* tangent, const T* grad) {
    T* by_d;
    Tensor result = in.result(by_d, {a.atoms, a.width, 3});
    run_spline_moment_pulls<T>(in.op, a, a.atoms, tangent, grad, by_d);
    return result;
  }
};

}  // namespace mdops
