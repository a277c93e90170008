// The ops on nets. A device has `mlp_values`, `mlp_values_and_gradients`, `mlp_gradients` and `mlp_seconds`.
#pragma once

#include "common/bind.h"
#include "gemm/inputs.h"

namespace mdops {

template <class Device>
struct MlpOps {
  using Lists = Tensors;

  static MlpInputs arguments(Checked<Device>& in, Input x, NetArguments given) {
    MlpInputs net(in.op, x, given);
    if (in.op.on_cpu()) refuse_tf32(in.op, net.matmul);
    net.x = Device::placed(net.x);
    for (Lists* const list : {&net.weights, &net.biases, &net.timesteps})
      for (Tensor& tensor : *list) tensor = Device::placed(tensor);
    return net;
  }

  static Tensor mlp(Checked<Device>& in, MlpInputs& net) { return mlp_values(in.op, net); }

  static Outputs<2> mlp_value_and_gradient(Checked<Device>& in, MlpInputs& net) {
    return mlp_values_and_gradients(in.op, net);
  }

  static std::tuple<Tensor, Lists, Lists, Lists> mlp_backward(Checked<Device>& in, Input grad, Input x,
                                                              NetArguments given, bool with_weights) {
    const MlpInputs net = arguments(in, x, given);
    const Tensor a = Device::placed(input(in.op, "grad", grad, net.dtype, {net.rows, net.outputs}));
    MlpGradients grads(in.op, net, with_weights);
    const Tensor grad_x = mlp_gradients(in.op, net, a, with_weights, grads);
    return {grad_x, grads.weights, grads.biases, grads.timesteps};
  }

  static std::tuple<Tensor, Tensor, Lists, Lists, Lists> mlp_backward_backward(Checked<Device>& in,
                                                                               Input direction, Input grad,
                                                                               Input grad_value, Input x,
                                                                               NetArguments given,
                                                                               bool with_weights) {
    const MlpInputs net = arguments(in, x, given);
    const Tensor u =
        Device::placed(input(in.op, "direction", direction, net.dtype, {net.rows, net.shape.features}));
    const Tensor b = Device::placed(input(in.op, "grad", grad, net.dtype, {net.rows, net.outputs}));
    const Tensor a =
        Device::placed(input(in.op, "grad_value", grad_value, net.dtype, {net.rows, net.outputs}));
    MlpGradients grads(in.op, net, with_weights);
    const auto [tangent, grad_x] = mlp_seconds(in.op, net, u, b, a, with_weights, grads);
    return {tangent, grad_x, grads.weights, grads.biases, grads.timesteps};
  }

  MDOPS_IMPLEMENT(MlpOps, mlp, mlp_value_and_gradient, mlp_backward, mlp_backward_backward)
};

}  // namespace mdops
