// The ops of rows' own messages. A device has `run_own_message`.
#pragma once

#include "common/activation_code.h"
#include "common/bind.h"
#include "own_message/own_message.h"

namespace mdops {

template <class Device, class T>
struct OwnMessageOps {
  static OwnMessageArgs<T> arguments(Checked<Device>& in, Input x, Input weight, Input bias, Input factor,
                                     double keep, int64_t activation, double threshold) {
    OwnMessageArgs<T> a{};
    in.place(a.x, "x", x, {kAny, kAny});
    a.rows = x.size(0), a.width = x.size(1);
    if (a.width == 0) fail(in.op, "argument `x` has no columns, expected one or more");
    in.take(a.weight, "weight", weight, {a.width, a.width});
    in.place(a.bias, "bias", bias, {a.width});
    in.place(a.factor, "factor", factor, {a.width});
    a.keep = static_cast<T>(keep), a.activation = activation_of(in.op, activation);
    a.threshold = static_cast<T>(threshold);
    return a;
  }

  static Tensor own_message(Checked<Device>& in, OwnMessageArgs<T>& a) {
    Tensor y = in.result(a.out, {a.rows, a.width});
    run_own_message(in.op, a);
    return y;
  }

  static Tensor own_message_backward(Checked<Device>& in, OwnMessageArgs<T>& a, Input grad) {
    in.give(a.grad, "grad", grad, {a.rows, a.width});
    return own_message(in, a);
  }

  MDOPS_IMPLEMENT_FLOATS(OwnMessageOps, own_message, own_message_backward)
};

}  // namespace mdops
