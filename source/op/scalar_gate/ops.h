// The ops on gates of atoms' rows. A device has `run_scalar_gate`.
#pragma once

#include "common/bind.h"
#include "scalar_gate/scalar_gate.h"

namespace mdops {

// With scalars, or without: those of passes without are null.
template <class Device, class T>
struct ScalarGateOps {
  static Tensor scalar_gate(Checked<Device>& in, const Tensor& x, const Tensor& gate, const Tensor& scalars) {
    return forward(in, x, gate, scalars);
  }

  static Tensor row_gate(Checked<Device>& in, const Tensor& x, const Tensor& gate) {
    return forward(in, x, gate, std::nullopt);
  }

  static Outputs<3> scalar_gate_backward(Checked<Device>& in, const Tensor& grad, const Tensor& x,
                                         const Tensor& gate, const Tensor& scalars) {
    return backward(in, grad, x, gate, scalars);
  }

  static Outputs<2> row_gate_backward(Checked<Device>& in, const Tensor& grad, const Tensor& x,
                                      const Tensor& gate) {
    auto [by_x, by_gate, _] = backward(in, grad, x, gate, std::nullopt);
    return {by_x, by_gate};
  }

  static Outputs<4> scalar_gate_backward_backward(Checked<Device>& in, const Tensor& along_x,
                                                  const Tensor& along_gate, const Tensor& along_scalars,
                                                  const Tensor& grad, const Tensor& x, const Tensor& gate,
                                                  const Tensor& scalars) {
    return twice(in, along_x, along_gate, along_scalars, grad, x, gate, scalars);
  }

  static Outputs<3> row_gate_backward_backward(Checked<Device>& in, const Tensor& along_x,
                                               const Tensor& along_gate, const Tensor& grad, const Tensor& x,
                                               const Tensor& gate) {
    auto [by_grad, by_x, by_gate, _] =
        twice(in, along_x, along_gate, std::nullopt, grad, x, gate, std::nullopt);
    return {by_grad, by_x, by_gate};
  }

  MDOPS_IMPLEMENT_FLOATS(ScalarGateOps, scalar_gate, scalar_gate_backward, scalar_gate_backward_backward,
                         row_gate, row_gate_backward, row_gate_backward_backward)

 private:
  using Optional = std::optional<Tensor>;

  static ScalarGateArgs<T> taken(Checked<Device>& in, const Tensor& x, const Tensor& gate,
                                 const Optional& scalars) {
    ScalarGateArgs<T> a{};
    in.take(a.x, "x", x, {kAny, kAny, kAny});
    a.atoms = x.size(0), a.rows = x.size(1), a.channels = x.size(2);
    in.take(a.gate, "gate", gate, {a.atoms, a.channels});
    in.take(a.scalars, "scalars", scalars, {a.atoms, 2 * a.channels});
    if (a.rows < 1) fail(in.op, "argument `x` has no rows, expected 1 or more");
    return a;
  }

  static Tensor forward(Checked<Device>& in, const Tensor& x, const Tensor& gate, const Optional& scalars) {
    auto a = taken(in, x, gate, scalars);
    Tensor y = in.result(a.y, {a.atoms, a.rows, a.channels});
    run_scalar_gate(in.op, a);
    return y;
  }

  static Outputs<3> backward(Checked<Device>& in, const Tensor& grad, const Tensor& x, const Tensor& gate,
                             const Optional& scalars) {
    auto a = taken(in, x, gate, scalars);
    in.give(a.grad, "grad", grad, {a.atoms, a.rows, a.channels});
    Tensor by_x = in.result(a.y, {a.atoms, a.rows, a.channels});
    Tensor by_gate = in.result(a.by_gate, {a.atoms, a.channels});
    Tensor by_scalars = in.result(a.by_scalars, {a.atoms, scalars ? 2 * a.channels : 0});
    run_scalar_gate(in.op, a);
    return {by_x, by_gate, by_scalars};
  }

  static Outputs<4> twice(Checked<Device>& in, const Tensor& along_x, const Tensor& along_gate,
                          const Optional& along_scalars, const Tensor& grad, const Tensor& x,
                          const Tensor& gate, const Optional& scalars) {
    auto a = taken(in, x, gate, scalars);
    in.give(a.grad, "grad", grad, {a.atoms, a.rows, a.channels});
    in.give(a.along_x, "along_x", along_x, {a.atoms, a.rows, a.channels});
    in.take(a.along_gate, "along_gate", along_gate, {a.atoms, a.channels});
    a.along_scalars = a.along_gate;  // which nothing reads without scalars
    in.take(a.along_scalars, "along_scalars", along_scalars, {a.atoms, 2 * a.channels});
    Tensor by_grad = in.result(a.by_grad, {a.atoms, a.rows, a.channels});
    Tensor by_x = in.result(a.y, {a.atoms, a.rows, a.channels});
    Tensor by_gate = in.result(a.by_gate, {a.atoms, a.channels});
    Tensor by_scalars = in.result(a.by_scalars, {a.atoms, scalars ? 2 * a.channels : 0});
    run_scalar_gate(in.op, a);
    return {by_grad, by_x, by_gate, by_scalars};
  }
};

}  // namespace mdops
