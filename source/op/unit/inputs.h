// The arguments of the ops on rows of length 1, checked at entry; for the CPU and for GPUs.
#pragma once

#include <string>
#include <vector>

#include "common/tensor.h"
#include "unit/unit.h"

namespace mdops {

// A tensor for each part of the rows.
using UnitParts = std::vector<Tensor>;

struct UnitInputs {
  Tensor x, direction;  // the second one as far as the pass has it
  UnitParts grads;      // none: the forward pass
  bool second;
  ScalarType dtype;
  int64_t rows, parts, width;

  UnitInputs(const Op& op, int64_t parts_, const Tensor& x_, const UnitParts& grads_ = {},
             const Tensor* direction_ = nullptr)
      : x(float_input(op, "x", x_, {kAny, kAny})),
        direction(x),
        second(direction_ != nullptr),
        dtype(x.scalar_type()),
        rows(x.size(0)),
        parts(parts_),
        width(x.size(1) / parts) {
    if (x.size(1) % parts)
      fail(op, "argument `x` has " + std::to_string(x.size(1)) + " columns, expected a multiple of " +
                   std::to_string(parts));
    const char* const names[] = {"grad_q", "grad_k", "grad_v"};
    for (size_t k = 0; k < grads_.size(); ++k)
      grads.push_back(input(op, parts == 1 ? "grad" : names[k], grads_[k], dtype, {rows, width}));
    if (second) direction = input(op, "direction", *direction_, dtype, {rows, parts * width});
  }

  Tensor of_x(const Op& op) const { return empty(op, {rows, parts * width}, dtype); }
  UnitParts of_y(const Op& op) const {
    UnitParts all;
    for (int64_t k = 0; k < parts; ++k) all.push_back(empty(op, {rows, width}, dtype));
    return all;
  }

  template <class T>
  UnitArgs<T> args(UnitParts* of_y, Tensor* of_x) const {
    UnitArgs<T> args{rows,
                     width,
                     parts,
                     x.const_data_ptr<T>(),
                     second ? direction.const_data_ptr<T>() : nullptr,
                     {},
                     {},
                     of_x ? of_x->mutable_data_ptr<T>() : nullptr};
    for (size_t k = 0; k < grads.size(); ++k) args.grad[k] = grads[k].const_data_ptr<T>();
    for (size_t k = 0; of_y && k < of_y->size(); ++k) args.of_y[k] = (*of_y)[k].mutable_data_ptr<T>();
    return args;
  }
};

}  // namespace mdops
