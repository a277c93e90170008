// The ops on rows of length 1. A device has `make(name, x)`, a call of an op, `placed(tensor)`, an input
// where its kernels read it with the same bits, and `run`, which does it.
#pragma once

#include <tuple>

#include "unit/inputs.h"

namespace mdops {

template <class Device>
struct UnitOps {
  static Tensor unit(const Tensor& x) { return forward("unit", 1, x)[0]; }
  static Tensor unit_backward(const Tensor& grad, const Tensor& x) {
    return backward("unit_backward", 1, {grad}, x);
  }
  static std::tuple<Tensor, Tensor> unit_backward_backward(const Tensor& direction, const Tensor& grad,
                                                           const Tensor& x) {
    const auto all = second("unit_backward_backward", 1, direction, {grad}, x);
    return {all[0], all[1]};
  }

  static std::tuple<Tensor, Tensor, Tensor> unit_three(const Tensor& x) {
    const UnitParts y = forward("unit_three", 3, x);
    return {y[0], y[1], y[2]};
  }
  static Tensor unit_three_backward(const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v,
                                    const Tensor& x) {
    return backward("unit_three_backward", 3, {grad_q, grad_k, grad_v}, x);
  }
  static std::tuple<Tensor, Tensor, Tensor, Tensor> unit_three_backward_backward(const Tensor& direction,
                                                                                 const Tensor& grad_q,
                                                                                 const Tensor& grad_k,
                                                                                 const Tensor& grad_v,
                                                                                 const Tensor& x) {
    const auto all = second("unit_three_backward_backward", 3, direction, {grad_q, grad_k, grad_v}, x);
    return {all[0], all[1], all[2], all[3]};
  }

 private:
  static UnitParts forward(const char* name, int64_t parts, const Tensor& x) {
    const auto op = Device::make(name, x);
    const UnitInputs in = inputs(op, parts, x);
    UnitParts y = in.of_y(op);
    run(op, in, &y, nullptr);
    return y;
  }
  static Tensor backward(const char* name, int64_t parts, const UnitParts& grads, const Tensor& x) {
    const auto op = Device::make(name, x);
    const UnitInputs in = inputs(op, parts, x, grads);
    Tensor by_x = in.of_x(op);
    run(op, in, nullptr, &by_x);
    return by_x;
  }
  // The gradients by those of y, and last that by x.
  static UnitParts second(const char* name, int64_t parts, const Tensor& direction, const UnitParts& grads,
                          const Tensor& x) {
    const auto op = Device::make(name, x);
    const UnitInputs in = inputs(op, parts, x, grads, &direction);
    UnitParts all = in.of_y(op);
    Tensor by_x = in.of_x(op);
    run(op, in, &all, &by_x);
    all.push_back(by_x);
    return all;
  }

  template <class... Args>
  static UnitInputs inputs(const Args&... args) {
    UnitInputs in(args...);
    in.x = Device::placed(in.x), in.direction = Device::placed(in.direction);
    for (Tensor& grad : in.grads) grad = Device::placed(grad);
    return in;
  }

  template <class O>
  static void run(const O& op, const UnitInputs& in, UnitParts* of_y, Tensor* of_x) {
    dispatch_float(op, in.dtype, [&](auto zero) { Device::run(op, in.args<decltype(zero)>(of_y, of_x)); });
  }
};

}  // namespace mdops
