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

  static std::tuple<Tensor, Tensor> harmonic_sums(const Tensor& displacements, const Tensor& counts,
                                                  const Tensor& types, const Tensor& pair_mask,
                                                  const Tensor& first, const Tensor& second,
                                                  const Tensor& first_rows, const Tensor& second_rows,
                                                  const Tensor& first_slopes, const Tensor& second_slopes,
                                                  double cutoff, int64_t intervals, int64_t degree) {
    const auto op = Device::make("harmonic_sums", "displacements", displacements);
    const HarmonicSumInputs in(op, displacements, counts, types, pair_mask, first, second, first_rows,
                               second_rows, first_slopes, second_slopes, cutoff, intervals, degree);
    Tensor to_first = empty(op, in.first_shape(), in.list.dtype),
           to_second = empty(op, in.second_shape(), in.list.dtype);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      run_harmonic_sums(op, in.args<T>(), in.sums<T>(), to_first.mutable_data_ptr<T>(),
                        to_second.mutable_data_ptr<T>());
    });
    return {to_first, to_second};
  }

  static Tensor harmonic_sums_backward(const Tensor& by_first_, const Tensor& by_second_,
                                       const Tensor& displacements, const Tensor& counts, const Tensor& types,
                                       const Tensor& pair_mask, const Tensor& first, const Tensor& second,
                                       const Tensor& first_rows, const Tensor& second_rows,
                                       const Tensor& first_slopes, const Tensor& second_slopes, double cutoff,
                                       int64_t intervals, int64_t degree) {
    const auto op = Device::make("harmonic_sums_backward", "displacements", displacements);
    const HarmonicSumInputs in(op, displacements, counts, types, pair_mask, first, second, first_rows,
                               second_rows, first_slopes, second_slopes, cutoff, intervals, degree);
    const Tensor by_first = in.by_first(op, by_first_), by_second = in.by_second(op, by_second_);
    Tensor result = empty(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&](auto zero) {
      using T = decltype(zero);
      run_harmonic_sum_gradients(op, in.args<T>(), in.sums<T>(), by_first.const_data_ptr<T>(),
                                 by_second.const_data_ptr<T>(), result.mutable_data_ptr<T>());
    });
    return result;
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("harmonic_moment", TORCH_BOX(&HarmonicMomentOps::harmonic_moment));
    m.impl("harmonic_moment_backward", TORCH_BOX(&HarmonicMomentOps::harmonic_moment_backward));
    m.impl("harmonic_sums", TORCH_BOX(&HarmonicMomentOps::harmonic_sums));
    m.impl("harmonic_sums_backward", TORCH_BOX(&HarmonicMomentOps::harmonic_sums_backward));
  }
};

}  // namespace mdops
