// The ops on moments of rows in their frames. A device implements overloads of `run_order_moments` for its op
// calls.
#pragma once

#include "common/bind.h"
#include "graph/row_index.h"
#include "order_moments/order_moments.h"

namespace mdops {

template <class Device, class T>
struct OrderMomentOps {
  static OrderMomentArgs<T> arguments(Checked<Device>& in, Input turn, Input y, Input weight,
                                      NodeIndex index) {
    OrderMomentArgs<T> a{};
    in.take(a.turn, "turn", turn, {kAny, kAny, kAny});
    const int64_t edges = turn.size(0), degree = turn.size(1) / 3;
    a.shape = {edges, 0, degree, 1, 1};
    if (turn.size(1) != a.shape.rows() || turn.size(2) != a.shape.columns())
      fail(in.op, "argument `turn` has matrices of ", turn.size(1), " rows and ", turn.size(2),
           " columns, expected 3 L + 1 and (L + 1)^2");
    in.place(a.y, "y", y, {edges, turn.size(1), kAny});
    in.take(a.weight, "weight", weight, {edges, kAny});
    const RowIndex of(in, index, edges);
    a.of = {of.index, of.order, of.offsets, edges};
    a.shape.nodes = of.targets, a.shape.channels = y.size(2), a.shape.groups = weight.size(1);
    if (a.shape.groups < 1 || a.shape.channels % a.shape.groups)
      fail(in.op, "argument `weight` has ", a.shape.groups, " numbers of an edge, which do not divide ",
           a.shape.channels, " channels");
    return a;
  }

  static Tensor order_moments(Checked<Device>& in, OrderMomentArgs<T>& a) {
    Tensor moments = in.result(a.moments, {a.shape.nodes, a.shape.columns(), a.shape.numbers()});
    run_order_moments(in.op, a);
    return moments;
  }

  // The gradients by turn, y and weight.
  static Outputs<3> order_moments_backward(Checked<Device>& in, OrderMomentArgs<T>& a, Input grad) {
    in.give(a.grad, "grad", grad, {a.shape.nodes, a.shape.columns(), a.shape.numbers()});
    const int64_t edges = a.shape.edges, rows = a.shape.rows();
    Tensor by_turn = in.result(a.by_turn, {edges, rows, a.shape.columns()});
    Tensor by_y = in.result(a.by_y, {edges, rows, a.shape.channels});
    Tensor by_weight = in.result(a.by_weight, {edges, a.shape.groups});
    run_order_moments(in.op, a);
    return {by_turn, by_y, by_weight};
  }

  MDOPS_IMPLEMENT_FLOATS(OrderMomentOps, order_moments, order_moments_backward)
};

}  // namespace mdops
