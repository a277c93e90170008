// The ops on nets. A device has `mlp_values`, `mlp_values_and_gradients`, `mlp_gradients` and `mlp_seconds`.
#pragma once

#include "common/bind.h"
#include "gemm/inputs.h"

namespace mdops {

template <class Device>
struct MlpOps {
  using Lists = std::vector<Tensor>;
  using Integers = std::vector<int64_t>;
  using Numbers = std::vector<double>;

  static Tensor mlp(const Tensor& x, Lists weights, Lists biases, Lists timesteps, Integers residual,
                    Integers activations, Numbers thresholds, std::string matmul) {
    const auto op = Device::make("mlp", "x", x);
    return mlp_values(op,
                      inputs(op, x, weights, biases, timesteps, residual, activations, thresholds, matmul));
  }

  static Outputs<2> mlp_value_and_gradient(const Tensor& x, Lists weights, Lists biases, Lists timesteps,
                                           Integers residual, Integers activations, Numbers thresholds,
                                           std::string matmul) {
    const auto op = Device::make("mlp_value_and_gradient", "x", x);
    return mlp_values_and_gradients(
        op, inputs(op, x, weights, biases, timesteps, residual, activations, thresholds, matmul));
  }

  static std::tuple<Tensor, Lists, Lists, Lists> mlp_backward(const Tensor& grad, const Tensor& x,
                                                              Lists weights, Lists biases, Lists timesteps,
                                                              Integers residual, Integers activations,
                                                              Numbers thresholds, std::string matmul,
                                                              bool with_weights) {
    const auto op = Device::make("mlp_backward", "x", x);
    const MlpInputs in = inputs(op, x, weights, biases, timesteps, residual, activations, thresholds, matmul);
    const Tensor a = Device::placed(input(op, "grad", grad, in.dtype, {in.rows, in.outputs}));
    MlpGradients grads(op, in, with_weights);
    const Tensor grad_x = mlp_gradients(op, in, a, with_weights, grads);
    return {grad_x, grads.weights, grads.biases, grads.timesteps};
  }

  static std::tuple<Tensor, Tensor, Lists, Lists, Lists> mlp_backward_backward(
      const Tensor& direction, const Tensor& grad, const Tensor& grad_value, const Tensor& x, Lists weights,
      Lists biases, Lists timesteps, Integers residual, Integers activations, Numbers thresholds,
      std::string matmul, bool with_weights) {
    const auto op = Device::make("mlp_backward_backward", "x", x);
    const MlpInputs in = inputs(op, x, weights, biases, timesteps, residual, activations, thresholds, matmul);
    const Tensor u =
        Device::placed(input(op, "direction", direction, in.dtype, {in.rows, in.shape.features}));
    const Tensor b = Device::placed(input(op, "grad", grad, in.dtype, {in.rows, in.outputs}));
    const Tensor a = Device::placed(input(op, "grad_value", grad_value, in.dtype, {in.rows, in.outputs}));
    MlpGradients grads(op, in, with_weights);
    const auto [tangent, grad_x] = mlp_seconds(op, in, u, b, a, with_weights, grads);
    return {tangent, grad_x, grads.weights, grads.biases, grads.timesteps};
  }

  MDOPS_IMPLEMENT(MlpOps, mlp, mlp_value_and_gradient, mlp_backward, mlp_backward_backward)

 private:
  template <class... Rest>
  static MlpInputs inputs(const Op& op, const Rest&... rest) {
    MlpInputs in(op, rest...);
    if (op.on_cpu()) refuse_tf32(op, in.matmul);
    in.x = Device::placed(in.x);
    for (Lists* const list : {&in.weights, &in.biases, &in.timesteps})
      for (Tensor& tensor : *list) tensor = Device::placed(tensor);
    return in;
  }
};

}  // namespace mdops
