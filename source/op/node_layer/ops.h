// The ops of a layer's nodes.
#pragma once

#include "common/activation_code.h"
#include "common/bind.h"
#include "node_layer/node_layer.h"

namespace mdops {

template <class Device, class T>
struct NodeLayerOps {
  // With the weights from `node_layer_pack`, if given.
  struct Given : NodeLayerArgs<T> {
    int64_t edges;  // rows of e for each node
    Optional packed;
  };

  static Given arguments(Checked<Device>& in, Input n, Input v, Input e, Input own, Input own_bias,
                         Input own_factor, Input sum_factor, Input every, Input bias, Input factor,
                         bool takes_nodes, double keep, int64_t axis, int64_t activation, double threshold,
                         const Optional& packed) {
    Given a{};
    in.take(a.n, "n", n, {kAny, kAny});
    const int64_t rows = a.rows = n.size(0), width = a.width = n.size(1);
    in.take(a.v, "v", v, {rows, kAny, width});
    in.take(a.e, "e", e, {rows, kAny, kAny});
    a.sums = v.size(1), a.edge_width = e.size(2), a.axis = axis;
    const int64_t of_own = own.numel() ? width : 0, edges = a.edges = e.size(1);
    in.take(a.own, "own", own, {of_own, of_own});
    in.take(a.own_bias, "own_bias", own_bias, {of_own});
    in.take(a.own_factor, "own_factor", own_factor, {of_own});
    in.take(a.sum_factor, "sum_factor", sum_factor, {sum_factor.numel() ? width : 0});
    in.take(a.every, "every", every, {kAny, width});
    a.inputs = every.size(0), a.takes_nodes = takes_nodes;
    in.take(a.bias, "bias", bias, {width});
    in.take(a.factor, "factor", factor, {width});
    // Optional inputs, null for the kernels if absent.
    if (!of_own) a.own = nullptr;
    if (!sum_factor.numel()) a.sum_factor = nullptr;
    if (!edges) a.e = nullptr;
    a.keep = static_cast<T>(keep), a.packed = packed;
    a.activation = activation_of(in.op, activation), a.threshold = static_cast<T>(threshold);
    if (a.sums != 0 && a.sums != 1 && a.sums != 4)
      fail(in.op, "argument `v` has ", a.sums, " rows for each node, expected 0, 1 or 4");
    if (edges != 0 && edges != 3)
      fail(in.op, "argument `e` has ", edges, " rows for each node, expected 0 or 3");
    if (a.sum_factor && a.sums == 0)
      fail(in.op, "argument `v` has no rows, and `sum_factor` multiplies the first");
    if (axis < 0 || (a.sums == 4 && axis > width) || (edges && axis > a.edge_width))
      fail(in.op, "argument `axis` is ", axis, ", expected no more than a sum has columns");
    const int64_t wanted =
        (takes_nodes ? width : 0) + (edges ? axis * a.edge_width : 0) + (a.sums == 4 ? axis * width : 0);
    if (a.inputs != wanted) fail(in.op, "argument `every` has ", a.inputs, " rows, expected ", wanted);
    return a;
  }

  static Outputs<3> node_layer(Checked<Device>& in, Given& a) {
    Tensor out = in.result(a.out, {a.rows, a.width}), z = in.result(a.z, {a.rows, a.width});
    Tensor z_own = in.result(a.z_own, {a.own ? a.rows : 0, a.width});
    run_node_layer(in.op, a, a.packed);
    return {out, z, z_own};
  }

  // By n, v and e.
  static Outputs<3> node_layer_backward(Checked<Device>& in, Given& a, Input grad, Input z, Input z_own) {
    in.give(a.grad, "grad", grad, {a.rows, a.width});
    in.take_saved(a.z, "z", z, {a.rows, a.width});
    in.take_saved(a.z_own, "z_own", z_own, {a.own ? a.rows : 0, a.width});
    Tensor by_n = in.result(a.out, {a.rows, a.width}), by_v = in.result(a.by_v, {a.rows, a.sums, a.width});
    Tensor by_e = in.result(a.by_e, {a.rows, a.edges, a.edge_width});
    run_node_layer(in.op, a, a.packed);
    return {by_n, by_v, by_e};
  }

  // The weights in the layout of `node_layer`, or with `back` of its gradient.
  static Tensor node_layer_pack(Checked<Device>& in, Input own, Input own_bias, Input every, Input bias,
                                bool back) {
    NodeLayerArgs<T> a{};
    in.take(a.every, "every", every, {kAny, kAny});
    a.inputs = every.size(0), a.width = every.size(1);
    const int64_t of_own = own.numel() ? a.width : 0;
    in.take(a.own, "own", own, {of_own, of_own});
    in.take(a.own_bias, "own_bias", own_bias, {of_own});
    in.take(a.bias, "bias", bias, {a.width});
    if (!of_own) a.own = nullptr;
    if (back) in.give(a.grad, "every", every, {kAny, kAny});  // tells the passes apart
    return pack_node_layer(in.op, a);
  }

  MDOPS_IMPLEMENT_FLOATS(NodeLayerOps, node_layer, node_layer_pack, node_layer_backward)
};

}  // namespace mdops
