// The ops that mix degrees, their arguments checked at entry. What a device does are overloads of
// `run_orders` on the call of an op.
#pragma once

#include <string>

#include "common/bind.h"
#include "common/instantiate.h"
#include "common/tensor.h"
#include "order_mix/mix.h"
#include "order_mix/order_mix.h"

namespace mdops {

template <class Device>
struct OrderMixOps {
  static Tensor order_mix(const Tensor& numbers_, const Tensor& x_, int64_t degree, bool transposed) {
    const auto op = Device::make("order_mix", "x", x_);
    const Tensor x = float_input(op, "x", x_, {kAny, kAny, kAny});
    const OrderShape shape = shape_of(op, x, degree);
    const Tensor numbers = input(op, "numbers", numbers_, x.scalar_type(), {shape.edges, shape.numbers()});
    Tensor y = empty(op, {shape.edges, x.size(1), shape.columns}, x.scalar_type());
    dispatch_float(op, x.scalar_type(), [&]<class T>(T) {
      run_orders(op, OrderMixArgs<T>{shape, transposed, data_of(numbers), data_of(x), data_of(y)});
    });
    return y;
  }

  static Tensor order_mix_outer(const Tensor& x_, const Tensor& y_, int64_t degree) {
    const auto op = Device::make("order_mix_outer", "x", x_);
    const Tensor x = Device::placed(float_input(op, "x", x_, {kAny, kAny, kAny}));
    const OrderShape shape = shape_of(op, x, degree);
    const Tensor y =
        Device::placed(input(op, "y", y_, x.scalar_type(), {shape.edges, x.size(1), shape.columns}));
    Tensor numbers = empty(op, {shape.edges, shape.numbers()}, x.scalar_type());
    dispatch_float(op, x.scalar_type(), [&]<class T>(T) {
      run_orders(op, OrderOuterArgs<T>{shape, data_of(x), data_of(y), data_of(numbers)});
    });
    return numbers;
  }

  MDOPS_IMPLEMENT(OrderMixOps, order_mix, order_mix_outer)

 private:
  static OrderShape shape_of(const Op& op, const Tensor& x, int64_t degree) {
    if (degree < 0 || degree > 64)
      fail(op, "argument `degree` is " + std::to_string(degree) + ", expected 0 to 64");
    OrderShape shape{x.size(0), degree, 0, x.size(2)};
    while (shape.order < degree && shape.rows() < x.size(1)) ++shape.order;
    if (shape.rows() != x.size(1))
      fail(op, "argument `x` has " + std::to_string(x.size(1)) +
                   " rows, which no order has of degrees up to " + std::to_string(degree));
    return shape;
  }
};

template <class Call, class Args>
void mix_orders(const Call& op, const Args& args) {
  run_orders(op, args);
}

}  // namespace mdops
