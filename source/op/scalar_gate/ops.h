// The ops on gates of atoms' rows. A device has `run_scalar_gate`.
#pragma once

#include "common/bind.h"
#include "scalar_gate/scalar_gate.h"

namespace mdops {

// Without scalars, their arguments are null in all passes.
template <class T>
struct GateInputs : ScalarGateArgs<T> {
  int64_t scalar_columns;
};

template <class Device, class T>
struct ScalarGateOps {
  static GateInputs<T> arguments(Checked<Device>& in, Input x, Input gate, Input scalars) {
    return taken(in, x, gate, scalars);
  }

  static GateInputs<T> taken(Checked<Device>& in, Input x, Input gate, const Optional& scalars) {
    GateInputs<T> a{};
    in.take(a.x, "x", x, {kAny, kAny, kAny});
    a.atoms = x.size(0), a.rows = x.size(1), a.channels = x.size(2);
    in.take(a.gate, "gate", gate, {a.atoms, a.channels});
    in.take(a.scalars, "scalars", scalars, {a.atoms, 2 * a.channels});
    a.scalar_columns = scalars ? 2 * a.channels : 0;
    if (a.rows < 1) fail(in.op, "argument `x` has no rows, expected 1 or more");
    return a;
  }

  static Tensor scalar_gate(Checked<Device>& in, GateInputs<T>& a) {
    Tensor y = in.result(a.y, {a.atoms, a.rows, a.channels});
    run_scalar_gate<T>(in.op, a);
    return y;
  }

  static Outputs<3> scalar_gate_backward(Checked<Device>& in, GateInputs<T>& a, Input grad) {
    in.give(a.grad, "grad", grad, {a.atoms, a.rows, a.channels});
    Tensor by_gate = in.result(a.by_gate, {a.atoms, a.channels});
    Tensor by_scalars = in.result(a.by_scalars, {a.atoms, a.scalar_columns});
    return {scalar_gate(in, a), by_gate, by_scalars};
  }

  static Outputs<4> scalar_gate_backward_backward(Checked<Device>& in, GateInputs<T>& a, Input along_x,
                                                  Input along_gate, Input along_scalars, Input grad) {
    in.take(a.along_scalars, "along_scalars", along_scalars, {a.atoms, 2 * a.channels});
    return twice(in, a, along_x, along_gate, grad);
  }

  static Outputs<4> twice(Checked<Device>& in, GateInputs<T>& a, Input along_x, Input along_gate,
                          Input grad) {
    in.give(a.along_x, "along_x", along_x, {a.atoms, a.rows, a.channels});
    in.take(a.along_gate, "along_gate", along_gate, {a.atoms, a.channels});
    if (!a.along_scalars) a.along_scalars = a.along_gate;  // not read without scalars
    Tensor by_grad = in.result(a.by_grad, {a.atoms, a.rows, a.channels});
    return std::tuple_cat(std::tuple(by_grad), scalar_gate_backward(in, a, grad));
  }

  MDOPS_IMPLEMENT_FLOATS(ScalarGateOps, scalar_gate, scalar_gate_backward, scalar_gate_backward_backward)
};

// The same without scalars.
template <class Device, class T>
struct RowGateOps {
  using Gate = ScalarGateOps<Device, T>;

  static GateInputs<T> arguments(Checked<Device>& in, Input x, Input gate) {
    return Gate::taken(in, x, gate, std::nullopt);
  }

  static Tensor row_gate(Checked<Device>& in, GateInputs<T>& a) { return Gate::scalar_gate(in, a); }

  static Outputs<2> row_gate_backward(Checked<Device>& in, GateInputs<T>& a, Input grad) {
    const auto [by_x, by_gate, _] = Gate::scalar_gate_backward(in, a, grad);
    return {by_x, by_gate};
  }

  static Outputs<3> row_gate_backward_backward(Checked<Device>& in, GateInputs<T>& a, Input along_x,
                                               Input along_gate, Input grad) {
    const auto [by_grad, by_x, by_gate, _] = Gate::twice(in, a, along_x, along_gate, grad);
    return {by_grad, by_x, by_gate};
  }

  MDOPS_IMPLEMENT_FLOATS(RowGateOps, row_gate, row_gate_backward, row_gate_backward_backward)
};

}  // namespace mdops
