// The ops on what a layer makes of its product. A device has `make(name, z)`, a call of an op, and `run`.
#pragma once

#include <string>
#include <tuple>

#include "common/tensor.h"
#include "layer_output/layer_output.h"

namespace mdops {

struct LayerOutputInputs {
  Tensor z;
  ScalarType dtype;
  int64_t rows, columns, inputs, activation;
  double threshold;

  LayerOutputInputs(const Op& op, const Tensor& z_, int64_t inputs_, int64_t activation_, double threshold_)
      : z(float_input(op, "z", z_, {kAny, kAny})),
        dtype(z.scalar_type()),
        rows(z.size(0)),
        columns(z.size(1)),
        inputs(inputs_),
        activation(activation_),
        threshold(threshold_) {
    if (inputs < 0 || (inputs && columns % inputs))
      fail(op, "the layer has " + std::to_string(inputs) + " inputs to add, expected 0 or a divisor of the " +
                   std::to_string(columns) + " columns of `z`");
    if (activation < 0 || activation > static_cast<int64_t>(Activation::silut))
      fail(op, "argument `activation` is " + std::to_string(activation) + ", not one of mdops' codes");
  }

  Tensor wide(const Op& op, const char* name, const Tensor& tensor) const {
    return input(op, name, tensor, dtype, {rows, columns});
  }
  Tensor narrow(const Op& op, const char* name, const Tensor& tensor) const {
    return input(op, name, tensor, dtype, {rows, inputs});
  }
  Tensor wide(const Op& op) const { return empty(op, {rows, columns}, dtype); }
  Tensor narrow(const Op& op) const { return empty(op, {rows, inputs}, dtype); }

  template <class T>
  LayerOutputArgs<T> args() const {
    LayerOutputArgs<T> args{};
    args.rows = rows, args.columns = columns, args.inputs = inputs;
    args.activation = static_cast<Activation>(activation), args.threshold = static_cast<T>(threshold);
    args.z = z.const_data_ptr<T>();
    return args;
  }
};

template <class Device>
struct LayerOutputOps {
  static Tensor layer_output(const Tensor& z, const Tensor& x_, int64_t activation, double threshold) {
    const auto op = Device::make("layer_output", z);
    const LayerOutputInputs in(op, z, x_.dim() == 2 ? x_.size(1) : 0, activation, threshold);
    const Tensor x = in.narrow(op, "x", x_);
    Tensor y = in.wide(op);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      auto args = in.args<T>();
      args.x = x.const_data_ptr<T>(), args.y = y.mutable_data_ptr<T>();
      Device::run(op, args);
    });
    return y;
  }

  // The gradients by z and x.
  static std::tuple<Tensor, Tensor> layer_output_backward(const Tensor& grad_, const Tensor& z,
                                                          int64_t inputs, int64_t activation,
                                                          double threshold) {
    const auto op = Device::make("layer_output_backward", z);
    const LayerOutputInputs in(op, z, inputs, activation, threshold);
    const Tensor grad = in.wide(op, "grad", grad_);
    Tensor by_z = in.wide(op), by_x = in.narrow(op);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      auto args = in.args<T>();
      args.grad = grad.const_data_ptr<T>();
      args.by_z = by_z.mutable_data_ptr<T>(), args.by_x = by_x.mutable_data_ptr<T>();
      Device::run(op, args);
    });
    return {by_z, by_x};
  }

  // The gradients by `grad` and z.
  static std::tuple<Tensor, Tensor> layer_output_backward_backward(const Tensor& along_z,
                                                                   const Tensor& along_x, const Tensor& grad_,
                                                                   const Tensor& z, int64_t inputs,
                                                                   int64_t activation, double threshold) {
    const auto op = Device::make("layer_output_backward_backward", z);
    const LayerOutputInputs in(op, z, inputs, activation, threshold);
    const Tensor u = in.wide(op, "along_z", along_z), w = in.narrow(op, "along_x", along_x);
    const Tensor grad = in.wide(op, "grad", grad_);
    Tensor by_grad = in.wide(op), by_z = in.wide(op);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      auto args = in.args<T>();
      args.u = u.const_data_ptr<T>(), args.w = w.const_data_ptr<T>(), args.grad = grad.const_data_ptr<T>();
      args.y = by_grad.mutable_data_ptr<T>(), args.by_z = by_z.mutable_data_ptr<T>();
      Device::run(op, args);
    });
    return {by_grad, by_z};
  }
};

}  // namespace mdops
