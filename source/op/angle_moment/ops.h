// The ops on moments of angles, their arguments checked at entry. A device has `make(name, argument,
// tensor)`, a call of an op; what is done are overloads on that call.
#pragma once

#include <tuple>

#include "angle_moment/inputs.h"
#include "common/bind.h"

namespace mdops {

template <class Device>
struct AngleMomentOps {
  using Call = typename Device::Call;

  static std::tuple<Tensor, Tensor, Tensor> angle_moment(const Call& op, const AngleInputs& in) {
    Tensor moments = empty(op, {in.atoms, in.pairs(), in.pieces(), kAnglePowers}, in.dtype);
    Tensor within = empty(op, {in.atoms, in.ntypes}, ScalarType::Int);
    Tensor nearest = empty(op, {in.atoms}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_angle_moments(op, in.args<T>(), in.atoms, moments.mutable_data_ptr<T>(),
                        within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<T>());
    });
    return {moments, within, nearest};
  }

  static Tensor angle_moment_backward(const Call& op, const AngleInputs& in, const Tensor& grad_) {
    const Tensor grad = in.grad(op, grad_);
    Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_angle_moment_gradients(op, in.args<T>(), in.atoms, grad.const_data_ptr<T>(),
                                 result.mutable_data_ptr<T>());
    });
    return result;
  }

  static Tensor angle_moment_jvp(const Call& op, const AngleInputs& in, const Tensor& tangent_) {
    const Tensor tangent = in.pair_tensor(op, "tangent", tangent_);
    Tensor result = empty(op, {in.atoms, in.pairs(), in.pieces(), kAnglePowers}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_angle_moment_tangents(op, in.args<T>(), in.atoms, tangent.const_data_ptr<T>(),
                                result.mutable_data_ptr<T>());
    });
    return result;
  }

  static Tensor angle_moment_hvp(const Call& op, const AngleInputs& in, const Tensor& tangent_,
                                 const Tensor& grad_) {
    const Tensor tangent = in.pair_tensor(op, "tangent", tangent_), grad = in.grad(op, grad_);
    Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_angle_moment_seconds(op, in.args<T>(), in.atoms, tangent.const_data_ptr<T>(),
                               grad.const_data_ptr<T>(), result.mutable_data_ptr<T>());
    });
    return result;
  }

  static std::tuple<Tensor, Tensor, Tensor> angle_features(const Call& op, AngleFeatureInputs& in) {
    in.plain = Device::placed(in.plain), in.gates = Device::placed(in.gates);  // GPUs read 16 bytes at once
    Tensor features = empty(op, {in.atoms, in.channels}, in.dtype);
    Tensor within = empty(op, {in.atoms, in.ntypes}, ScalarType::Int);
    Tensor nearest = empty(op, {in.atoms}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      make_angle_features(op, in.args<T>(), in.tables<T>(), in.atoms, features.mutable_data_ptr<T>(),
                          within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<T>());
    });
    return {features, within, nearest};
  }

  static Tensor angle_features_backward(const Call& op, const AngleFeatureInputs& in, const Tensor& grad_) {
    const Tensor grad = input(op, "grad", grad_, in.dtype, {in.atoms, in.channels});
    Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      make_angle_gradients(op, in.args<T>(), in.tables<T>(), in.atoms, grad.const_data_ptr<T>(),
                           result.mutable_data_ptr<T>());
    });
    return result;
  }

  MDOPS_IMPLEMENT(AngleMomentOps, angle_moment, angle_moment_backward, angle_moment_jvp, angle_moment_hvp,
                  angle_features, angle_features_backward)
};

}  // namespace mdops
