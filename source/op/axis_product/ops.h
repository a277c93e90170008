// The ops on the features T^T T_<.
#pragma once

#include "axis_product/axis_product.h"
#include "common/bind.h"

namespace mdops {

struct AxisInputs {
  static constexpr int64_t kMost = 1 << 24;  // numbers of an atom: what kernels count

  Tensor t, grad;
  std::optional<Tensor> behind;
  ScalarType dtype;
  int64_t atoms, rows, width, axis, more = 0;  // `more`: numbers of a row of features behind D

  AxisInputs(const Op& op, const Tensor& t_, int64_t axis_, const std::optional<Tensor>& behind_ = {})
      : t(float_input(op, "t", t_, {kAny, kAny, kAny})),
        grad(t),
        dtype(t.scalar_type()),
        atoms(t.size(0)),
        rows(t.size(1)),
        width(t.size(2)),
        axis(axis_) {
    if (axis < 1 || axis > width)
      fail(op, "argument `axis` is ", axis, ", expected 1 to t.shape[2], ", width);
    if (rows > kMost || width > kMost || rows * width > kMost || width * axis > kMost)
      fail(op, "argument `t` has too many numbers for an atom");
    if (!behind_) return;
    behind = input(op, "behind", *behind_, dtype, {atoms, kAny});
    more = behind->size(1);
    if (more > kMost) fail(op, "argument `behind` has too many numbers for an atom");
  }
  AxisInputs(const Op& op, const Tensor& grad_, const Tensor& t_, int64_t axis_) : AxisInputs(op, t_, axis_) {
    grad = input(op, "grad", grad_, dtype, {atoms, kAny});
    more = grad.size(1) - width * axis;
    if (more < 0)
      fail(op, "argument `grad` has ", grad.size(1), " columns, expected at least ", width * axis);
    if (more > kMost) fail(op, "argument `grad` has too many numbers for an atom");
  }

  int64_t row_size() const { return width * axis + more; }

  template <class T>
  AxisArgs<T> args(Tensor& out, bool backward) const {
    AxisArgs<T> a{};
    a.atoms = atoms, a.rows = static_cast<int>(rows), a.width = static_cast<int>(width);
    a.axis = static_cast<int>(axis), a.t = data_of(t), a.grad = data_of(backward ? &grad : nullptr);
    a.out = data_of(out), a.more = more, a.behind = data_of(behind);
    return a;
  }
};

template <class Device>
struct AxisProductOps {
  static Tensor axis_product(const Tensor& t, int64_t axis, const std::optional<Tensor>& behind) {
    const auto op = Device::make("axis_product", "t", t);
    const AxisInputs in(op, t, axis, behind);
    Tensor out = empty(op, {in.atoms, in.row_size()}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) { run_axis_features(op, in.args<T>(out, false)); });
    return out;
  }

  static Tensor axis_product_backward(const Tensor& grad, const Tensor& t, int64_t axis) {
    const auto op = Device::make("axis_product_backward", "t", t);
    const AxisInputs in(op, grad, t, axis);
    Tensor out = empty(op, {in.atoms, in.rows, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) { run_axis_gradients(op, in.args<T>(out, true)); });
    return out;
  }

  MDOPS_IMPLEMENT(AxisProductOps, axis_product, axis_product_backward)
};

}  // namespace mdops
