// The ops on the features T^T T_<.
#pragma once

#include "axis_product/axis_product.h"
#include "common/bind.h"

namespace mdops {

template <class Device, class T>
struct AxisProductOps {
  static Tensor axis_product(Checked<Device>& in, Input t, int64_t axis, const Optional& behind) {
    auto a = taken(in, t, axis);
    in.take(a.behind, "behind", behind, {a.atoms, kAny});
    take_more(in.op, a, "behind", behind ? behind->size(1) : 0);
    Tensor out = in.result(a.out, {a.atoms, a.row_size()});
    run_axis_features(in.op, a);
    return out;
  }

  static Tensor axis_product_backward(Checked<Device>& in, Input grad, Input t, int64_t axis) {
    auto a = taken(in, t, axis);
    in.take(a.grad, "grad", grad, {a.atoms, kAny});
    if (grad.size(1) < a.d_size())
      fail(in.op, "argument `grad` has ", grad.size(1), " columns, expected at least ", a.d_size());
    take_more(in.op, a, "grad", grad.size(1) - a.d_size());
    Tensor out = in.result(a.out, {a.atoms, a.rows, a.width});
    run_axis_gradients(in.op, a);
    return out;
  }

  MDOPS_IMPLEMENT_FLOATS(AxisProductOps, axis_product, axis_product_backward)

 private:
  static constexpr int64_t kMost = 1 << 24;  // numbers of an atom: limit of the kernels

  static AxisArgs<T> taken(Checked<Device>& in, Input t, int64_t axis) {
    AxisArgs<T> a{};
    in.take(a.t, "t", t, {kAny, kAny, kAny});
    const int64_t rows = t.size(1), width = t.size(2);
    if (axis < 1 || axis > width)
      fail(in.op, "argument `axis` is ", axis, ", expected 1 to t.shape[2], ", width);
    if (rows > kMost || width > kMost || rows * width > kMost || width * axis > kMost)
      fail(in.op, "argument `t` has too many numbers for an atom");
    a.atoms = t.size(0), a.rows = static_cast<int>(rows), a.width = static_cast<int>(width);
    a.axis = static_cast<int>(axis);
    return a;
  }

  // Numbers of a row after D.
  static void take_more(const Op& op, AxisArgs<T>& a, const char* name, int64_t more) {
    if (more > kMost) fail(op, "argument `", name, "` has too many numbers for an atom");
    a.more = more;
  }
};

}  // namespace mdops
