// The ops on harmonic moments, their arguments checked at entry. What a device does are overloads on the call
// of an op.
#pragma once

#include "harmonic_moment/inputs.h"

namespace mdops {

template <class Device>
struct HarmonicMomentOps {
  static Tensor harmonic_moment(const Tensor& displacements, const Tensor& counts, const Tensor& types,
                                const Tensor& pair_mask, double cutoff, int64_t intervals, int64_t degree) {
    const auto op = Device::make("harmonic_moment", "displacements", displacements);
    const HarmonicMomentInputs in(op, displacements, counts, types, pair_mask, cutoff, intervals, degree);
    Tensor moments = empty(op, in.shape(), in.list.dtype);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      run_harmonic_moments(op, in.args<T>(), moments.mutable_data_ptr<T>());
    });
    return moments;
  }

  static Tensor harmonic_moment_backward(const Tensor& grad_, const Tensor& slope_,
                                         const Tensor& displacements, const Tensor& counts,
                                         const Tensor& types, const Tensor& pair_mask, double cutoff,
                                         int64_t intervals, int64_t degree) {
    const auto op = Device::make("harmonic_moment_backward", "displacements", displacements);
    const HarmonicMomentInputs in(op, displacements, counts, types, pair_mask, cutoff, intervals, degree);
    const Tensor grad = in.grad(op, "grad", grad_), slope = in.grad(op, "slope", slope_);
    Tensor result = empty(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      run_harmonic_moment_gradients(op, in.args<T>(), grad.const_data_ptr<T>(), slope.const_data_ptr<T>(),
                                    result.mutable_data_ptr<T>());
    });
    return result;
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("harmonic_moment", TORCH_BOX(&HarmonicMomentOps::harmonic_moment));
    m.impl("harmonic_moment_backward", TORCH_BOX(&HarmonicMomentOps::harmonic_moment_backward));
  }
};

}  // namespace mdops
