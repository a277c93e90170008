// The ops on what messages along angles add for their edges. A device has `run_angle_ends` and
// `run_angle_end_gradients`.
#pragma once

#include "angle_ends/angle_ends.h"
#include "common/bind.h"
#include "graph/row_index.h"

namespace mdops {

struct AngleEndsInputs {
  Tensor weight;
  ScalarType dtype = weight.scalar_type();
  int64_t inputs = weight.size(0), columns = weight.size(1) / 2;
  RowIndex of;

  AngleEndsInputs(const Op& op, const Tensor& weight_, const Tensor& index, const Tensor& offsets)
      : weight(float_input(op, "weight", weight_, {kAny, kAny})),
        of(op, index, std::nullopt, offsets, index.dim() == 1 ? index.size(0) : 0) {
    if (weight.size(1) % 2)
      fail(op,
           "argument `weight` has " + std::to_string(weight.size(1)) + " columns, expected an even number");
  }

  Tensor rows(const Op& op, const char* name, const Tensor& given, int64_t width) const {
    return input(op, name, given, dtype, {of.rows, width});
  }
  template <class T>
  AngleEndsArgs<T> args() const {
    AngleEndsArgs<T> a{};
    a.weight = data_of(weight), a.index = data_of(of.index), a.offsets = data_of(of.offsets);
    a.rows = of.rows, a.atoms = of.targets, a.inputs = inputs, a.columns = columns;
    return a;
  }
};

template <class Device>
struct AngleEndsOps {
  static Outputs<2> angle_ends(const Tensor& x_, const Tensor& of_atom_, const Tensor& weight,
                               const Tensor& index, const Tensor& offsets) {
    const auto op = Device::make("angle_ends", "x", x_);
    const AngleEndsInputs in(op, Device::placed(weight), index, offsets);
    const Tensor x = Device::placed(in.rows(op, "x", x_, in.inputs));
    const Tensor of_atom =
        Device::placed(input(op, "of_atom", of_atom_, in.dtype, {in.of.targets, in.columns}));
    Tensor p = empty(op, {in.of.rows, in.columns}, in.dtype),
           q = empty(op, {in.of.rows, in.columns}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) {
      auto args = in.args<decltype(zero)>();
      args.x = data_of(x), args.of_atom = data_of(of_atom);
      args.p = data_of(p), args.q = data_of(q);
      run_angle_ends(op, args);
    });
    return {p, q};
  }

  // By x and of_atom.
  static Outputs<2> angle_ends_backward(const Tensor& grad_p_, const Tensor& grad_q_, const Tensor& weight,
                                        const Tensor& index, const Tensor& offsets) {
    const auto op = Device::make("angle_ends_backward", "grad_p", grad_p_);
    const AngleEndsInputs in(op, Device::placed(weight), index, offsets);
    const Tensor grad_p = Device::placed(in.rows(op, "grad_p", grad_p_, in.columns));
    const Tensor grad_q = Device::placed(in.rows(op, "grad_q", grad_q_, in.columns));
    Tensor by_x = empty(op, {in.of.rows, in.inputs}, in.dtype);
    Tensor by_atom = empty(op, {in.of.targets, in.columns}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) {
      auto args = in.args<decltype(zero)>();
      args.grad_p = data_of(grad_p), args.grad_q = data_of(grad_q);
      args.by_x = data_of(by_x), args.by_atom = data_of(by_atom);
      run_angle_end_gradients(op, args);
    });
    return {by_x, by_atom};
  }

  MDOPS_IMPLEMENT(AngleEndsOps, angle_ends, angle_ends_backward)
};

}  // namespace mdops
