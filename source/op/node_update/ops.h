// The ops on nodes after messages. A device has `run_node_update`.
#pragma once

#include "common/activation_code.h"
#include "common/bind.h"
#include "node_update/node_update.h"

namespace mdops {

template <class Device, class T>
struct NodeUpdateOps {
  static NodeUpdateArgs<T> arguments(Checked<Device>& in, Input z, Input u, Input weights, int64_t activation,
                                     double threshold) {
    NodeUpdateArgs<T> a{};
    in.take(a.z, "z", z, {kAny, kAny});
    a.rows = z.size(0), a.width = z.size(1), a.numbers = z.numel();
    in.take(a.u, "u", u, {a.rows, a.width});
    in.take(a.weights, "weights", weights, {3, a.width});
    a.activation = activation_of(in.op, activation), a.threshold = static_cast<T>(threshold);
    return a;
  }

  static Tensor node_update(Checked<Device>& in, Input x, Input z, Input u, Input m, Input weights,
                            int64_t activation, double threshold) {
    auto a = arguments(in, z, u, weights, activation, threshold);
    in.take(a.x, "x", x, {a.rows, a.width});
    in.take(a.m, "m", m, {a.rows, a.width});
    Tensor y = in.result(a.y, {a.rows, a.width});
    run_node_update(in.op, a);
    return y;
  }

  // By z, u and m.
  static Outputs<3> node_update_backward(Checked<Device>& in, NodeUpdateArgs<T>& a, Input grad) {
    in.take(a.grad, "grad", grad, {a.rows, a.width});
    Tensor by_z = in.result(a.by_z, {a.rows, a.width}), by_u = in.result(a.by_u, {a.rows, a.width});
    Tensor by_m = in.result(a.by_m, {a.rows, a.width});
    run_node_update(in.op, a);
    return {by_z, by_u, by_m};
  }

  MDOPS_IMPLEMENT_FLOATS(NodeUpdateOps, node_update, node_update_backward)
};

}  // namespace mdops
