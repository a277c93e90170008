// The ops on harmonic moments, their arguments checked at entry. What a device does are overloads on the call
// of an op.
#pragma once

#include "common/bind.h"
#include "harmonic_moment/inputs.h"

namespace mdops {

template <class Device>
struct HarmonicMomentOps {
  using Call = typename Device::Call;

  static Tensor harmonic_moment(const Call& op, const HarmonicMomentInputs& in) {
    Tensor moments = empty(op, in.shape(), in.list.dtype);
    dispatch_float(op, in.list.dtype, [&]<class T>(T) {
      run_harmonic_moments(op, in.args<T>(), moments.mutable_data_ptr<T>());
    });
    return moments;
  }

  static Tensor harmonic_moment_backward(const Call& op, const HarmonicMomentInputs& in, const Tensor& grad_,
                                         const Tensor& slope_) {
    const Tensor grad = in.grad(op, "grad", grad_), slope = in.grad(op, "slope", slope_);
    Tensor result = empty(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&]<class T>(T) {
      run_harmonic_moment_gradients(op, in.args<T>(), grad.const_data_ptr<T>(), slope.const_data_ptr<T>(),
                                    result.mutable_data_ptr<T>());
    });
    return result;
  }

  static std::tuple<Tensor, Tensor, Tensor, Tensor> harmonic_sums(const Call& op,
                                                                  const HarmonicSumInputs& in) {
    const ScalarType dtype = in.list.dtype;
    Tensor first = empty(op, in.first_shape(), dtype), second = empty(op, in.second_shape(), dtype),
           within = empty(op, {in.list.atoms}, ScalarType::Int), nearest = empty(op, {in.list.atoms}, dtype);
    dispatch_float(op, dtype, [&]<class T>(T) {
      run_harmonic_sums(op, in.args<T>(), in.sums<T>(),
                        HarmonicSums<T>{first.mutable_data_ptr<T>(), second.mutable_data_ptr<T>(),
                                        within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<T>()});
    });
    return {first, second, within, nearest};
  }

  static Tensor harmonic_sums_backward(const Call& op, const HarmonicSumInputs& in, const Tensor& by_first_,
                                       const Tensor& by_second_) {
    const Tensor by_first = in.by_first(op, by_first_), by_second = in.by_second(op, by_second_);
    Tensor result = empty(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
    dispatch_float(op, in.list.dtype, [&]<class T>(T) {
      run_harmonic_sum_gradients(op, in.args<T>(), in.sums<T>(), by_first.const_data_ptr<T>(),
                                 by_second.const_data_ptr<T>(), result.mutable_data_ptr<T>());
    });
    return result;
  }

  MDOPS_IMPLEMENT(HarmonicMomentOps, harmonic_moment, harmonic_moment_backward, harmonic_sums,
                  harmonic_sums_backward)
};

}  // namespace mdops
