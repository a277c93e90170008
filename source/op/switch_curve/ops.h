// The op on the switch. A device has `make(name, r)`, a call of an op, and `run`, which does it.
#pragma once

#include <string>

#include "common/cutoff.h"
#include "common/tensor.h"
#include "switch_curve/switch_curve.h"

namespace mdops {

template <class Device>
Tensor switch_curve(const Tensor& r, double cutoff_smooth, double cutoff, int64_t order) {
  const auto op = Device::make("switch_curve", r);
  const Tensor x = float_input(op, "r", r, {kAny, kAny});
  check_cutoff(op, cutoff, cutoff_smooth, 0);
  if (order < 0 || order > INT32_MAX)
    fail(op, "argument `order` is " + std::to_string(order) + ", expected 0 or more, as 32 bits count");
  Tensor out = empty(op, {x.size(0), x.size(1)}, x.scalar_type());
  dispatch_float(op, x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    Device::run(op, SwitchArgs<T>{x.numel(), static_cast<T>(cutoff_smooth), static_cast<T>(cutoff),
                                  order < 6 ? order : 6, x.const_data_ptr<T>(), out.mutable_data_ptr<T>()});
  });
  return out;
}

}  // namespace mdops
