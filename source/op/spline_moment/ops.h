// The ops on moments of splines.
#pragma once

#include "common/bind.h"
#include "spline_moment/args.h"

namespace mdops {

template <class Device>
struct SplineMomentOps {
  static Outputs<3> spline_moment(const Tensor& displacements, const Tensor& counts, const Tensor& types,
                                  const Tensor& mean, const Tensor& std, const Tensor& pair_mask,
                                  const Tensor& zeroed, const Tensor& sel, const Tensor& padding,
                                  double cutoff, double cutoff_smooth, double protection, double s_max,
                                  double grading, int64_t intervals, bool radial, bool gated) {
    const auto op = Device::make("spline_moment", "displacements", displacements);
    const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                          protection, s_max, grading, intervals, radial, gated);
    const PlaceInputs places(op, zeroed, sel, padding, in.atoms, in.ntypes);
    Tensor moments = empty(op, {in.atoms, in.ntypes, in.basis(), in.columns()}, in.dtype);
    Tensor within = empty(op, {in.atoms, in.ntypes}, ScalarType::Int);
    Tensor nearest = empty(op, {in.atoms}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_spline_moments<T>(op, in.args<T>(places), in.atoms, data_of(moments), data_of(within),
                            data_of(nearest));
    });
    return {moments, within, nearest};
  }

  static Tensor spline_moment_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& counts,
                                       const Tensor& types, const Tensor& mean, const Tensor& std,
                                       const Tensor& pair_mask, double cutoff, double cutoff_smooth,
                                       double protection, double s_max, double grading, bool radial,
                                       bool gated) {
    const auto op = Device::make("spline_moment_backward", "displacements", displacements);
    const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                          protection, s_max, grading, intervals_of(grad_), radial, gated);
    const Tensor grad = in.grad(op, grad_);
    Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_spline_moment_gradients<T>(op, in.args<T>(), in.atoms, data_of(grad), data_of(result));
    });
    return result;
  }

  static Tensor spline_moment_jvp(const Tensor& tangent_, const Tensor& displacements, const Tensor& counts,
                                  const Tensor& types, const Tensor& mean, const Tensor& std,
                                  const Tensor& pair_mask, double cutoff, double cutoff_smooth,
                                  double protection, double s_max, double grading, int64_t intervals,
                                  bool radial, bool gated) {
    const auto op = Device::make("spline_moment_jvp", "displacements", displacements);
    const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                          protection, s_max, grading, intervals, radial, gated);
    const Tensor tangent = in.pair_tensor(op, "tangent", tangent_);
    Tensor result = empty(op, {in.atoms, in.ntypes, in.basis(), in.columns()}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_spline_moment_tangents<T>(op, in.args<T>(), in.atoms, data_of(tangent), data_of(result));
    });
    return result;
  }

  static Tensor spline_moment_hvp(const Tensor& tangent_, const Tensor& grad_, const Tensor& displacements,
                                  const Tensor& counts, const Tensor& types, const Tensor& mean,
                                  const Tensor& std, const Tensor& pair_mask, double cutoff,
                                  double cutoff_smooth, double protection, double s_max, double grading,
                                  bool radial, bool gated) {
    const auto op = Device::make("spline_moment_hvp", "displacements", displacements);
    const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                          protection, s_max, grading, intervals_of(grad_), radial, gated);
    const Tensor tangent = in.pair_tensor(op, "tangent", tangent_), grad = in.grad(op, grad_);
    Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_spline_moment_seconds<T>(op, in.args<T>(), in.atoms, data_of(tangent), data_of(grad),
                                   data_of(result));
    });
    return result;
  }

  MDOPS_IMPLEMENT(SplineMomentOps, spline_moment, spline_moment_backward, spline_moment_jvp,
                  spline_moment_hvp)
};

}  // namespace mdops
