// The ops on edges after messages. A device has `run_edge_update`.
#pragma once

#include "common/activation_code.h"
#include "common/bind.h"
#include "edge_update/edge_update.h"
#include "graph/row_index.h"

namespace mdops {

template <class Device, class T>
struct EdgeUpdateOps {
  static EdgeUpdateArgs<T> arguments(Checked<Device>& in, Input z, Input scale, Input bias, SortedIndex edges,
                                     int64_t activation, double threshold) {
    EdgeUpdateArgs<T> a{};
    in.place(a.z, "z", z, {kAny, kAny});
    a.rows = z.size(0), a.width = z.size(1);
    in.place(a.scale, "scale", scale, {a.width});
    in.place(a.bias, "bias", bias, {a.width});
    const RowIndex of(in, edges, a.rows);
    a.index = of.index, a.offsets = of.offsets, a.edges = of.targets;
    a.activation = activation_of(in.op, activation), a.threshold = static_cast<T>(threshold);
    return a;
  }

  static Tensor edge_update(Checked<Device>& in, EdgeUpdateArgs<T>& a, Input base) {
    in.place(a.base, "base", base, {a.edges, a.width});
    Tensor y = in.result(a.out, {a.edges, a.width});
    run_edge_update(in.op, a);
    return y;
  }

  // By z.
  static Tensor edge_update_backward(Checked<Device>& in, EdgeUpdateArgs<T>& a, Input grad) {
    in.give(a.grad, "grad", grad, {a.edges, a.width});
    Tensor by_z = in.result(a.out, {a.rows, a.width});
    run_edge_update(in.op, a);
    return by_z;
  }

  MDOPS_IMPLEMENT_FLOATS(EdgeUpdateOps, edge_update, edge_update_backward)
};

}  // namespace mdops
