// The ops of rows' own messages. A device has `run_own_message`.
#pragma once

#include "common/activation_code.h"
#include "common/bind.h"
#include "common/given.h"
#include "own_message/own_message.h"

namespace mdops {

struct OwnMessageInputs {
  Tensor x;
  ScalarType dtype = x.scalar_type();
  int64_t rows = x.size(0), width;
  Tensor weight, bias, factor;

  template <class Device>
  OwnMessageInputs(const Op& op, Device, const Tensor& x_, const Tensor& weight_, const Tensor& bias_,
                   const Tensor& factor_)
      : x(Device::placed(float_input(op, "x", x_, {kAny, kAny}))),
        width(x.size(1)),
        weight(input(op, "weight", weight_, dtype, {width, width})),
        bias(Device::placed(input(op, "bias", bias_, dtype, {width}))),
        factor(Device::placed(input(op, "factor", factor_, dtype, {width}))) {
    if (width == 0) fail(op, "argument `x` has no columns, expected one or more");
  }

  template <class T>
  OwnMessageArgs<T> args(const Op& op, double keep, int64_t activation, double threshold) const {
    OwnMessageArgs<T> a{};
    a.rows = rows, a.width = width, a.keep = static_cast<T>(keep);
    a.activation = activation_of(op, activation), a.threshold = static_cast<T>(threshold);
    a.x = x.const_data_ptr<T>(), a.weight = weight.const_data_ptr<T>(), a.bias = bias.const_data_ptr<T>();
    a.factor = factor.const_data_ptr<T>();
    return a;
  }
};

template <class Device>
struct OwnMessageOps {
  static Tensor own_message(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& factor,
                            double keep, int64_t activation, double threshold) {
    const auto op = Device::make("own_message", "x", x);
    const OwnMessageInputs in(op, Device{}, x, weight, bias, factor);
    Tensor y = empty(op, {in.rows, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>(op, keep, activation, threshold);
      args.out = data_of(y);
      run_own_message(op, args);
    });
    return y;
  }

  static Tensor own_message_backward(const Tensor& grad_, const Tensor& x, const Tensor& weight,
                                     const Tensor& bias, const Tensor& factor, double keep,
                                     int64_t activation, double threshold) {
    const auto op = Device::make("own_message_backward", "x", x);
    const OwnMessageInputs in(op, Device{}, x, weight, bias, factor);
    const Tensor grad = Device::placed(input(op, "grad", grad_, in.dtype, {in.rows, in.width}));
    Tensor by_x = empty(op, {in.rows, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>(op, keep, activation, threshold);
      args.grad = given<T>(grad), args.out = data_of(by_x);
      run_own_message(op, args);
    });
    return by_x;
  }

  MDOPS_IMPLEMENT(OwnMessageOps, own_message, own_message_backward)
};

}  // namespace mdops
