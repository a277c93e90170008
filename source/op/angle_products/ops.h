// The ops on products of pairs. A device has `run_angle_products` and `run_angle_gradients`.
#pragma once

#include "angle_products/angle_products.h"
#include "common/bind.h"
#include "graph/row_index.h"

namespace mdops {

template <class Device, class T>
struct AngleProductOps {
  static AngleProductArgs<T> arguments(Checked<Device>& in, Input u, SortedIndex first, NodeIndex second) {
    AngleProductArgs<T> a{};
    in.take(a.u, "u", u, {kAny, 4});
    const RowIndex firsts(in, first, kAny, "first", "first_offsets");
    const RowIndex seconds(in, second, firsts.rows, {"second", "second_order", "second_offsets"});
    check_nodes(in.op, "u", u, firsts);
    check_nodes(in.op, "u", u, seconds);
    a.rows = firsts.rows, a.things = firsts.targets;
    a.first = firsts.index, a.first_offsets = firsts.offsets;
    a.second = seconds.index, a.second_order = seconds.order, a.second_offsets = seconds.offsets;
    return a;
  }

  static Outputs<2> angle_products(Checked<Device>& in, AngleProductArgs<T>& a) {
    Tensor cosines = in.result(a.cosines, {a.rows}), weights = in.result(a.weights, {a.rows});
    run_angle_products(in.op, a);
    return {cosines, weights};
  }

  static Outputs<2> angle_products_along(Checked<Device>& in, AngleProductArgs<T>& a, Input v) {
    in.take(a.v, "v", v, {a.things, 4});
    return angle_products(in, a);
  }

  // By u, of the gradients by both results.
  static Tensor angle_products_backward(Checked<Device>& in, AngleProductArgs<T>& a, Input grad_cosines,
                                        Input grad_weights) {
    in.take(a.by_cosines, "grad_cosines", grad_cosines, {a.rows});
    in.take(a.by_weights, "grad_weights", grad_weights, {a.rows});
    a.v = a.u;
    Tensor by_u = in.result(a.by_u, {a.things, 4});
    run_angle_gradients(in.op, a);
    return by_u;
  }

  MDOPS_IMPLEMENT_FLOATS(AngleProductOps, angle_products, angle_products_along, angle_products_backward)
};

}  // namespace mdops
