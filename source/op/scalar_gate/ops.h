// The ops on gates of atoms' rows. A device has `run_scalar_gate`.
#pragma once

#include "common/bind.h"
#include "common/given.h"
#include "scalar_gate/scalar_gate.h"

namespace mdops {

// With scalars, or without.
struct ScalarGateInputs {
  Tensor x, gate, scalars;
  bool adds;
  ScalarType dtype = x.scalar_type();
  int64_t atoms = x.size(0), rows = x.size(1), channels = x.size(2);

  ScalarGateInputs(const Op& op, const Tensor& x_, const Tensor& gate_, const Tensor* scalars_)
      : x(float_input(op, "x", x_, {kAny, kAny, kAny})),
        gate(input(op, "gate", gate_, x.scalar_type(), {x.size(0), x.size(2)})),
        scalars(scalars_ ? input(op, "scalars", *scalars_, x.scalar_type(), {x.size(0), 2 * x.size(2)}) : x),
        adds(scalars_ != nullptr) {
    if (rows < 1) fail(op, "argument `x` has no rows, expected 1 or more");
  }

  Tensor of_rows(const Op& op, const char* name, const Tensor& given) const {
    return input(op, name, given, dtype, {atoms, rows, channels});
  }
  Tensor new_rows(const Op& op) const { return empty(op, {atoms, rows, channels}, dtype); }
  Tensor new_gate(const Op& op) const { return empty(op, {atoms, channels}, dtype); }
  Tensor new_scalars(const Op& op) const { return empty(op, {atoms, adds ? 2 * channels : 0}, dtype); }

  template <class T>
  ScalarGateArgs<T> args(Tensor& y) const {
    ScalarGateArgs<T> found{atoms, rows, channels, data_of(x), data_of(gate)};
    found.scalars = data_of(adds ? &scalars : nullptr);
    found.y = data_of(y);
    return found;
  }
};

template <class Device>
struct ScalarGateOps {
  static Tensor scalar_gate(const Tensor& x, const Tensor& gate, const Tensor& scalars) {
    return forward(Device::make("scalar_gate", "x", x), x, gate, &scalars);
  }

  static Tensor row_gate(const Tensor& x, const Tensor& gate) {
    return forward(Device::make("row_gate", "x", x), x, gate, nullptr);
  }

  static Outputs<3> scalar_gate_backward(const Tensor& grad, const Tensor& x, const Tensor& gate,
                                         const Tensor& scalars) {
    return backward(Device::make("scalar_gate_backward", "x", x), grad, x, gate, &scalars);
  }

  static Outputs<2> row_gate_backward(const Tensor& grad, const Tensor& x, const Tensor& gate) {
    auto [by_x, by_gate, _] = backward(Device::make("row_gate_backward", "x", x), grad, x, gate, nullptr);
    return {by_x, by_gate};
  }

  static Outputs<4> scalar_gate_backward_backward(const Tensor& along_x, const Tensor& along_gate,
                                                  const Tensor& along_scalars, const Tensor& grad,
                                                  const Tensor& x, const Tensor& gate,
                                                  const Tensor& scalars) {
    return twice(Device::make("scalar_gate_backward_backward", "x", x), along_x, along_gate, &along_scalars,
                 grad, x, gate, &scalars);
  }

  static Outputs<3> row_gate_backward_backward(const Tensor& along_x, const Tensor& along_gate,
                                               const Tensor& grad, const Tensor& x, const Tensor& gate) {
    auto [by_grad, by_x, by_gate, _] = twice(Device::make("row_gate_backward_backward", "x", x), along_x,
                                             along_gate, nullptr, grad, x, gate, nullptr);
    return {by_grad, by_x, by_gate};
  }

  MDOPS_IMPLEMENT(ScalarGateOps, scalar_gate, scalar_gate_backward, scalar_gate_backward_backward, row_gate,
                  row_gate_backward, row_gate_backward_backward)

 private:
  template <class Call>
  static Tensor forward(const Call& op, const Tensor& x, const Tensor& gate, const Tensor* scalars) {
    const ScalarGateInputs in(op, x, gate, scalars);
    Tensor y = in.new_rows(op);
    dispatch_float(op, in.dtype, [&]<class T>(T) { run_scalar_gate(op, in.args<T>(y)); });
    return y;
  }

  template <class Call>
  static Outputs<3> backward(const Call& op, const Tensor& grad_, const Tensor& x, const Tensor& gate,
                             const Tensor* scalars) {
    const ScalarGateInputs in(op, x, gate, scalars);
    const Tensor grad = in.of_rows(op, "grad", grad_);
    Tensor by_x = in.new_rows(op), by_gate = in.new_gate(op), by_scalars = in.new_scalars(op);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>(by_x);
      args.grad = given<T>(grad);
      args.by_gate = data_of(by_gate), args.by_scalars = data_of(by_scalars);
      run_scalar_gate(op, args);
    });
    return {by_x, by_gate, by_scalars};
  }

  template <class Call>
  static Outputs<4> twice(const Call& op, const Tensor& along_x_, const Tensor& along_gate_,
                          const Tensor* along_scalars_, const Tensor& grad_, const Tensor& x,
                          const Tensor& gate, const Tensor* scalars) {
    const ScalarGateInputs in(op, x, gate, scalars);
    const Tensor grad = in.of_rows(op, "grad", grad_), along_x = in.of_rows(op, "along_x", along_x_);
    const Tensor along_gate = input(op, "along_gate", along_gate_, in.dtype, {in.atoms, in.channels});
    const Tensor along_scalars =
        along_scalars_ ? input(op, "along_scalars", *along_scalars_, in.dtype, {in.atoms, 2 * in.channels})
                       : along_gate;
    Tensor by_grad = in.new_rows(op), by_x = in.new_rows(op);
    Tensor by_gate = in.new_gate(op), by_scalars = in.new_scalars(op);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>(by_x);
      args.grad = given<T>(grad), args.by_grad = data_of(by_grad);
      args.by_gate = data_of(by_gate), args.by_scalars = data_of(by_scalars);
      args.along_x = given<T>(along_x), args.along_gate = data_of(along_gate);
      args.along_scalars = data_of(along_scalars);
      run_scalar_gate(op, args);
    });
    return {by_grad, by_x, by_gate, by_scalars};
  }
};

}  // namespace mdops
