// The arguments of the ops on rows of length 1, checked at entry; for the CPU and for GPUs.
#pragma once

#include "common/tensor.h"
#include "unit/unit.h"

namespace mdops {

struct UnitInputs {
  Tensor x, grad, direction;  // the last two as far as the pass has them
  int passes;                 // 0: forward, 1: backward, 2: backward once more
  ScalarType dtype;
  int64_t rows, width;

  UnitInputs(const Op& op, const Tensor& x_, const Tensor* grad_ = nullptr,
             const Tensor* direction_ = nullptr)
      : x(float_input(op, "x", x_, {kAny, kAny})),
        grad(x),
        direction(x),
        passes((grad_ != nullptr) + (direction_ != nullptr)),
        dtype(x.scalar_type()),
        rows(x.size(0)),
        width(x.size(1)) {
    if (grad_) grad = input(op, "grad", *grad_, dtype, {rows, width});
    if (direction_) direction = input(op, "direction", *direction_, dtype, {rows, width});
  }

  Tensor result(const Op& op) const { return empty(op, {rows, width}, dtype); }

  template <class T>
  UnitArgs<T> args(Tensor& out, Tensor* by_x = nullptr) const {
    return {rows,
            width,
            x.const_data_ptr<T>(),
            passes > 0 ? grad.const_data_ptr<T>() : nullptr,
            passes > 1 ? direction.const_data_ptr<T>() : nullptr,
            out.mutable_data_ptr<T>(),
            by_x ? by_x->mutable_data_ptr<T>() : nullptr};
  }
};

}  // namespace mdops
