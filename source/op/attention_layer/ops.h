// The ops on a layer of attention, their arguments checked at entry. What a device does are overloads on the
// call of an op; it has `check_layer`, which refuses what its kernels do not have.
#pragma once

#include <tuple>

#include "attention_layer/inputs.h"

namespace mdops {

template <class Device>
struct AttentionLayerOps {
  using Optional = std::optional<Tensor>;

  static std::tuple<Tensor, Tensor> attention_layer(
      const Tensor& g, const Tensor& offsets, const Optional& project_weight, const Optional& project_bias,
      const Tensor& out_weight, const Tensor& out_bias, const Tensor& norm_weight, const Tensor& norm_bias,
      const Optional& factors, const Optional& gate, const Optional& switches, const Optional& absent,
      double scale, double shift, double eps, bool normalize, const Optional& plan, int64_t max_length) {
    const auto op = Device::make("attention_layer", "g", g);
    const LayerInputs in(op, g, offsets, project_weight, project_bias, out_weight, out_bias, norm_weight,
                         norm_bias, factors, gate, switches, absent, plan, max_length);
    check_layer(op, in);
    Tensor result = empty(op, {in.rows, in.features}, in.dtype);
    Tensor saved = empty(op, {in.rows, in.kept(normalize)}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      AttentionLayerArgs<T> args = in.args<T>(scale, shift, eps, normalize);
      args.saved = saved.mutable_data_ptr<T>();
      run_layer(op, in, args, result.mutable_data_ptr<T>());
    });
    return {result, saved};
  }

  static std::tuple<Tensor, Tensor, Tensor> attention_layer_backward(
      const Tensor& grad, const Tensor& saved, const Tensor& g, const Tensor& offsets,
      const Optional& project_weight, const Optional& project_bias, const Tensor& out_weight,
      const Tensor& out_bias, const Tensor& norm_weight, const Tensor& norm_bias, const Optional& factors,
      const Optional& gate, const Optional& switches, const Optional& absent, double scale, double shift,
      double eps, bool normalize, const Optional& plan, int64_t max_length) {
    const auto op = Device::make("attention_layer_backward", "g", g);
    const LayerInputs in(op, g, offsets, project_weight, project_bias, out_weight, out_bias, norm_weight,
                         norm_bias, factors, gate, switches, absent, plan, max_length);
    check_layer(op, in);
    const Tensor by = input(op, "grad", grad, in.dtype, {in.rows, in.features});
    const Tensor kept = input(op, "saved", saved, in.dtype, {in.rows, in.kept(normalize)});
    Tensor grad_g = empty(op, {in.rows, in.columns}, in.dtype);
    Tensor grad_gate = in.gate ? empty(op, {in.rows, 3}, in.dtype) : empty(op, {0}, in.dtype);
    Tensor grad_switch = empty(op, {in.switches ? in.rows : 0}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      AttentionLayerArgs<T> args = in.args<T>(scale, shift, eps, normalize);
      args.saved = const_cast<T*>(kept.const_data_ptr<T>());  // which this pass reads alone
      args.grad = by.const_data_ptr<T>();
      run_layer_gradients(
          op, in, args,
          AttentionLayerResults<T>{grad_g.mutable_data_ptr<T>(),
                                   in.gate ? grad_gate.mutable_data_ptr<T>() : nullptr,
                                   in.switches ? grad_switch.mutable_data_ptr<T>() : nullptr});
    });
    return {grad_g, grad_gate, grad_switch};
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("attention_layer", TORCH_BOX(&AttentionLayerOps::attention_layer));
    m.impl("attention_layer_backward", TORCH_BOX(&AttentionLayerOps::attention_layer_backward));
  }
};

}  // namespace mdops
