// The arguments of the ops, checked at entry; for the CPU and for GPUs.
#pragma once

#include "axis_product/axis_product.h"
#include "common/tensor.h"

namespace mdops {

struct AxisInputs {
  static constexpr int64_t kMost = 1 << 24;  // numbers of an atom: what kernels count

  Tensor t, grad;
  ScalarType dtype;
  int64_t atoms, rows, width, axis;

  AxisInputs(const Op& op, const Tensor& t_, int64_t axis_)
      : t(float_input(op, "t", t_, {kAny, kAny, kAny})),
        grad(t),
        dtype(t.scalar_type()),
        atoms(t.size(0)),
        rows(t.size(1)),
        width(t.size(2)),
        axis(axis_) {
    if (axis < 1 || axis > width)
      fail(op, "argument `axis` is " + std::to_string(axis) + ", expected 1 to t.shape[2], " +
                   std::to_string(width));
    if (rows > kMost || width > kMost || rows * width > kMost || width * axis > kMost)
      fail(op, "argument `t` has too many numbers for an atom");
  }
  AxisInputs(const Op& op, const Tensor& grad_, const Tensor& t_)
      : AxisInputs(op, t_, of_gradient(op, grad_, t_)) {
    grad = input(op, "grad", grad_, dtype, {atoms, width * axis});
  }

  template <class T>
  AxisArgs<T> args(Tensor& out, bool backward) const {
    return {atoms,
            static_cast<int>(rows),
            static_cast<int>(width),
            static_cast<int>(axis),
            t.const_data_ptr<T>(),
            backward ? grad.const_data_ptr<T>() : nullptr,
            out.mutable_data_ptr<T>()};
  }

 private:
  static int64_t of_gradient(const Op& op, const Tensor& grad, const Tensor& t) {
    if (grad.dim() != 2 || t.dim() != 3 || t.size(2) < 1 || grad.size(1) % t.size(2) != 0)
      fail(op, "argument `grad` has another shape than (N, M * axis), for t of (N, rows, M)");
    return grad.size(1) / t.size(2);
  }
};

}  // namespace mdops
