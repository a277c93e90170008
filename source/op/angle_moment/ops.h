// The ops on moments of angles.
#pragma once

#include "angle_moment/inputs.h"
#include "common/bind.h"

namespace mdops {

template <class Device>
struct AngleMomentOps {
  using Call = typename Device::Call;

  static Outputs<3> angle_moment(const Call& op, const AngleInputs& in) {
    Tensor moments = empty(op, {in.atoms, in.pairs(), in.pieces(), kAnglePowers}, in.dtype);
    Tensor within = empty(op, {in.atoms, in.ntypes}, ScalarType::Int);
    Tensor nearest = empty(op, {in.atoms}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_angle_moments<T>(op, in.args<T>(), in.atoms, data_of(moments), data_of(within), data_of(nearest));
    });
    return {moments, within, nearest};
  }

  static Tensor angle_moment_backward(const Call& op, const AngleInputs& in, const Tensor& grad_) {
    const Tensor grad = in.grad(op, grad_);
    Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_angle_moment_gradients<T>(op, in.args<T>(), in.atoms, data_of(grad), data_of(result));
    });
    return result;
  }

  static Tensor angle_moment_jvp(const Call& op, const AngleInputs& in, const Tensor& tangent_) {
    const Tensor tangent = in.pair_tensor(op, "tangent", tangent_);
    Tensor result = empty(op, {in.atoms, in.pairs(), in.pieces(), kAnglePowers}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_angle_moment_tangents<T>(op, in.args<T>(), in.atoms, data_of(tangent), data_of(result));
    });
    return result;
  }

  static Tensor angle_moment_hvp(const Call& op, const AngleInputs& in, const Tensor& tangent_,
                                 const Tensor& grad_) {
    const Tensor tangent = in.pair_tensor(op, "tangent", tangent_), grad = in.grad(op, grad_);
    Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_angle_moment_seconds<T>(op, in.args<T>(), in.atoms, data_of(tangent), data_of(grad),
                                  data_of(result));
    });
    return result;
  }

  static Outputs<3> angle_features(const Call& op, AngleFeatureInputs& in) {
    in.plain = Device::placed(in.plain), in.gates = Device::placed(in.gates);  // GPUs read 16 bytes at once
    Tensor features = empty(op, {in.atoms, in.channels}, in.dtype);
    Tensor within = empty(op, {in.atoms, in.ntypes}, ScalarType::Int);
    Tensor nearest = empty(op, {in.atoms}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      make_angle_features<T>(op, in.args<T>(), in.tables<T>(), in.atoms, data_of(features), data_of(within),
                             data_of(nearest));
    });
    return {features, within, nearest};
  }

  static Tensor angle_features_backward(const Call& op, const AngleFeatureInputs& in, const Tensor& grad_) {
    const Tensor grad = input(op, "grad", grad_, in.dtype, {in.atoms, in.channels});
    Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      make_angle_gradients<T>(op, in.args<T>(), in.tables<T>(), in.atoms, data_of(grad), data_of(result));
    });
    return result;
  }

  MDOPS_IMPLEMENT(AngleMomentOps, angle_moment, angle_moment_backward, angle_moment_jvp, angle_moment_hvp,
                  angle_features, angle_features_backward)
};

}  // namespace mdops
