// The ops on gates of atoms' rows, their arguments checked at entry. What a device does are overloads of
// `run_scalar_gate` on the call of an op.
#pragma once

#include <string>
#include <tuple>

#include "common/tensor.h"
#include "scalar_gate/scalar_gate.h"

namespace mdops {

struct ScalarGateInputs {
  Tensor x, gate, scalars;
  ScalarType dtype;
  int64_t atoms, rows, channels;

  ScalarGateInputs(const Op& op, const Tensor& x_, const Tensor& gate_, const Tensor& scalars_)
      : x(float_input(op, "x", x_, {kAny, kAny, kAny})),
        gate(input(op, "gate", gate_, x.scalar_type(), {x.size(0), x.size(2)})),
        scalars(input(op, "scalars", scalars_, x.scalar_type(), {x.size(0), 2 * x.size(2)})),
        dtype(x.scalar_type()),
        atoms(x.size(0)),
        rows(x.size(1)),
        channels(x.size(2)) {
    if (rows < 1) fail(op, "argument `x` has no rows, expected 1 or more");
  }

  template <class T>
  ScalarGateArgs<T> args(Tensor& y) const {
    return {atoms,
            rows,
            channels,
            x.const_data_ptr<T>(),
            gate.const_data_ptr<T>(),
            scalars.const_data_ptr<T>(),
            nullptr,
            y.mutable_data_ptr<T>()};
  }
};

template <class Device>
struct ScalarGateOps {
  static Tensor scalar_gate(const Tensor& x, const Tensor& gate, const Tensor& scalars) {
    const auto op = Device::make("scalar_gate", "x", x);
    const ScalarGateInputs in(op, x, gate, scalars);
    Tensor y = empty(op, {in.atoms, in.rows, in.channels}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) { run_scalar_gate(op, in.args<decltype(zero)>(y)); });
    return y;
  }

  static std::tuple<Tensor, Tensor, Tensor> scalar_gate_backward(const Tensor& grad_, const Tensor& x,
                                                                 const Tensor& gate, const Tensor& scalars) {
    const auto op = Device::make("scalar_gate_backward", "x", x);
    const ScalarGateInputs in(op, x, gate, scalars);
    const Tensor grad = input(op, "grad", grad_, in.dtype, {in.atoms, in.rows, in.channels});
    Tensor by_x = empty(op, {in.atoms, in.rows, in.channels}, in.dtype);
    Tensor by_gate = empty(op, {in.atoms, in.channels}, in.dtype);
    Tensor by_scalars = empty(op, {in.atoms, 2 * in.channels}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      auto args = in.args<T>(by_x);
      args.grad = grad.const_data_ptr<T>();
      args.by_gate = by_gate.mutable_data_ptr<T>(), args.by_scalars = by_scalars.mutable_data_ptr<T>();
      run_scalar_gate(op, args);
    });
    return {by_x, by_gate, by_scalars};
  }

  static std::tuple<Tensor, Tensor, Tensor, Tensor> scalar_gate_backward_backward(
      const Tensor& along_x_, const Tensor& along_gate_, const Tensor& along_scalars_, const Tensor& grad_,
      const Tensor& x, const Tensor& gate, const Tensor& scalars) {
    const auto op = Device::make("scalar_gate_backward_backward", "x", x);
    const ScalarGateInputs in(op, x, gate, scalars);
    const Tensor grad = input(op, "grad", grad_, in.dtype, {in.atoms, in.rows, in.channels});
    const Tensor along_x = input(op, "along_x", along_x_, in.dtype, {in.atoms, in.rows, in.channels});
    const Tensor along_gate = input(op, "along_gate", along_gate_, in.dtype, {in.atoms, in.channels});
    const Tensor along_scalars =
        input(op, "along_scalars", along_scalars_, in.dtype, {in.atoms, 2 * in.channels});
    Tensor by_grad = empty(op, {in.atoms, in.rows, in.channels}, in.dtype);
    Tensor by_x = empty(op, {in.atoms, in.rows, in.channels}, in.dtype);
    Tensor by_gate = empty(op, {in.atoms, in.channels}, in.dtype);
    Tensor by_scalars = empty(op, {in.atoms, 2 * in.channels}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      auto args = in.args<T>(by_x);
      args.grad = grad.const_data_ptr<T>(), args.by_grad = by_grad.mutable_data_ptr<T>();
      args.by_gate = by_gate.mutable_data_ptr<T>(), args.by_scalars = by_scalars.mutable_data_ptr<T>();
      args.along_x = along_x.const_data_ptr<T>(), args.along_gate = along_gate.const_data_ptr<T>();
      args.along_scalars = along_scalars.const_data_ptr<T>();
      run_scalar_gate(op, args);
    });
    return {by_grad, by_x, by_gate, by_scalars};
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("scalar_gate", TORCH_BOX(&ScalarGateOps::scalar_gate));
    m.impl("scalar_gate_backward", TORCH_BOX(&ScalarGateOps::scalar_gate_backward));
    m.impl("scalar_gate_backward_backward", TORCH_BOX(&ScalarGateOps::scalar_gate_backward_backward));
  }
};

}  // namespace mdops
