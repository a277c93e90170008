// The ops on a layer of attention. A device has `check_layer`, which refuses what its kernels do not have.
#pragma once

#include "attention_layer/inputs.h"
#include "common/bind.h"

namespace mdops {

template <class Device>
struct AttentionLayerOps {
  using Call = typename Device::Call;

  static Outputs<2> attention_layer(const Call& op, const LayerInputs& in) {
    check_layer(op, in);
    Tensor result = empty(op, {in.rows, in.features}, in.dtype);
    Tensor saved = empty(op, {in.rows, in.kept()}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      AttentionLayerArgs<T> args = in.args<T>();
      args.saved = data_of(saved);
      run_layer<T>(op, in, args, data_of(result));
    });
    return {result, saved};
  }

  static Outputs<3> attention_layer_backward(const Call& op, const LayerInputs& in, const Tensor& grad,
                                             const Tensor& saved) {
    check_layer(op, in);
    const Tensor by = input(op, "grad", grad, in.dtype, {in.rows, in.features});
    const Tensor kept = input(op, "saved", saved, in.dtype, {in.rows, in.kept()});
    Tensor grad_g = empty(op, {in.rows, in.columns}, in.dtype);
    Tensor grad_gate = in.gate ? empty(op, {in.rows, 3}, in.dtype) : empty(op, {0}, in.dtype);
    Tensor grad_switch = empty(op, {in.switches ? in.rows : 0}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      AttentionLayerArgs<T> args = in.args<T>();
      args.saved = const_cast<T*>(kept.const_data_ptr<T>());  // which this pass reads alone
      args.grad = data_of(by);
      run_layer_gradients(op, in, args,
                          AttentionLayerResults<T>{data_of(grad_g), data_of(in.gate ? &grad_gate : nullptr),
                                                   data_of(in.switches ? &grad_switch : nullptr)});
    });
    return {grad_g, grad_gate, grad_switch};
  }

  MDOPS_IMPLEMENT(AttentionLayerOps, attention_layer, attention_layer_backward)
};

}  // namespace mdops
