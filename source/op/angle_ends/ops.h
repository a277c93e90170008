// The ops on angle messages' terms for edges. A device has `run_angle_ends` and `run_angle_end_gradients`.
#pragma once

#include "angle_ends/angle_ends.h"
#include "common/bind.h"
#include "graph/row_index.h"

namespace mdops {

template <class Device, class T>
struct AngleEndsOps {
  static AngleEndsArgs<T> arguments(Checked<Device>& in, Input weight, SortedIndex atoms) {
    AngleEndsArgs<T> a{};
    in.place(a.weight, "weight", weight, {kAny, kAny});
    a.inputs = weight.size(0), a.columns = weight.size(1) / 2;
    if (weight.size(1) % 2)
      fail(in.op, "argument `weight` has ", weight.size(1), " columns, expected an even number");
    const RowIndex of(in, atoms, kAny);
    a.index = of.index, a.offsets = of.offsets, a.rows = of.rows, a.atoms = of.targets;
    return a;
  }

  static Outputs<2> angle_ends(Checked<Device>& in, AngleEndsArgs<T>& a, Input x, Input of_atom) {
    in.place(a.x, "x", x, {a.rows, a.inputs});
    in.place(a.of_atom, "of_atom", of_atom, {a.atoms, a.columns});
    Tensor p = in.result(a.p, {a.rows, a.columns}), q = in.result(a.q, {a.rows, a.columns});
    run_angle_ends(in.op, a);
    return {p, q};
  }

  // By x and of_atom.
  static Outputs<2> angle_ends_backward(Checked<Device>& in, AngleEndsArgs<T>& a, Input grad_p,
                                        Input grad_q) {
    in.place(a.grad_p, "grad_p", grad_p, {a.rows, a.columns});
    in.place(a.grad_q, "grad_q", grad_q, {a.rows, a.columns});
    Tensor by_x = in.result(a.by_x, {a.rows, a.inputs});
    Tensor by_atom = in.result(a.by_atom, {a.atoms, a.columns});
    run_angle_end_gradients(in.op, a);
    return {by_x, by_atom};
  }

  MDOPS_IMPLEMENT_FLOATS(AngleEndsOps, angle_ends, angle_ends_backward)
};

}  // namespace mdops
