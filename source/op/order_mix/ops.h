// The ops that mix degrees. A device overloads `run_orders` for the call of an op.
#pragma once

#include "common/bind.h"
#include "order_mix/mix.h"

namespace mdops {

template <class Device, class T>
struct OrderMixOps {
  static Tensor order_mix(Checked<Device>& in, Input numbers, Input x, int64_t degree, bool transposed) {
    OrderMixArgs<T> a{};
    in.take(a.x, "x", x, {kAny, kAny, kAny});
    a.shape = shape_of(in.op, x, degree), a.transposed = transposed;
    in.take(a.numbers, "numbers", numbers, {a.shape.edges, a.shape.numbers()});
    Tensor y = in.result(a.y, {a.shape.edges, x.size(1), a.shape.columns});
    run_orders(in.op, a);
    return y;
  }

  static Tensor order_mix_outer(Checked<Device>& in, Input x, Input y, int64_t degree) {
    OrderOuterArgs<T> a{};
    in.place(a.x, "x", x, {kAny, kAny, kAny});
    a.shape = shape_of(in.op, x, degree);
    in.place(a.y, "y", y, {a.shape.edges, x.size(1), a.shape.columns});
    Tensor numbers = in.result(a.numbers, {a.shape.edges, a.shape.numbers()});
    run_orders(in.op, a);
    return numbers;
  }

  MDOPS_IMPLEMENT_FLOATS(OrderMixOps, order_mix, order_mix_outer)

 private:
  static OrderShape shape_of(const Op& op, Input x, int64_t degree) {
    if (degree < 0 || degree > 64) fail(op, "argument `degree` is ", degree, ", expected 0 to 64");
    OrderShape shape{x.size(0), degree, 0, x.size(2)};
    while (shape.order < degree && shape.rows() < x.size(1)) ++shape.order;
    if (shape.rows() != x.size(1))
      fail(op, "argument `x` has ", x.size(1), " rows, which no order has of degrees up to ", degree);
    return shape;
  }
};

template <class Call, class Args>
void mix_orders(const Call& op, const Args& args) {
  run_orders(op, args);
}

}  // namespace mdops
