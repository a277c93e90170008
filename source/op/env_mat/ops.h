// The ops on rows of environments.
#pragma once

#include "common/bind.h"
#include "env_mat/inputs.h"

namespace mdops {

template <class Device>
struct EnvMatOps {
  using Call = typename Device::Call;

  static Tensor env_mat(const Tensor& displacements, const Tensor& counts, const Tensor& types,
                        const Tensor& mean_, const Tensor& std, const Tensor& pair_mask, double cutoff,
                        double cutoff_smooth, double protection, bool radial) {
    const auto op = Device::make("env_mat", "displacements", displacements);
    const EnvMatInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                          radial);
    const Tensor mean = input(op, "mean", mean_, in.dtype, {in.ntypes});
    Tensor result = empty(op, {in.atoms, in.width, in.columns}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_env_mat<T>(op, in.args<T>(data_of(mean)), in.atoms, data_of(result));
    });
    return result;
  }

  static Tensor env_mat_backward(const Call& op, const EnvMatInputs& in, const Tensor& grad_) {
    const Tensor grad = in.grad(op, grad_);
    Tensor result = Device::summed(op, {in.atoms, in.width, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_env_mat_gradients<T>(op, in.args<T>(nullptr), in.atoms, data_of(grad), data_of(result));
    });
    return result;
  }

  static Outputs<2> env_mat_backward_backward(const Call& op, const EnvMatInputs& in, const Tensor& tangent_,
                                              const Tensor& grad_) {
    const Tensor grad = in.grad(op, grad_);
    const Tensor tangent = input(op, "tangent", tangent_, in.dtype, {in.atoms, in.width, 3});
    Tensor grad_grad = Device::summed(op, {in.atoms, in.width, in.columns}, in.dtype);
    Tensor grad_d = Device::summed(op, {in.atoms, in.width, 3}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      run_env_mat_seconds<T>(op, in.args<T>(nullptr), in.atoms, data_of(tangent), data_of(grad),
                             data_of(grad_grad), data_of(grad_d));
    });
    return {grad_grad, grad_d};
  }

  MDOPS_IMPLEMENT(EnvMatOps, env_mat, env_mat_backward, env_mat_backward_backward)
};

}  // namespace mdops
