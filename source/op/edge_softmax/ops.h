// The ops on weights of edges. A device has `run_edge_softmax`.
#pragma once

#include "common/bind.h"
#include "edge_softmax/edge_softmax.h"
#include "graph/row_index.h"

namespace mdops {

template <class Device, class T>
struct EdgeSoftmaxOps {
  static EdgeSoftmaxArgs<T> arguments(Checked<Device>& in, Input q, Input k, Input bias, Input fades,
                                      Input nothing, SortedIndex atoms, NodeIndex nodes, double scale) {
    EdgeSoftmaxArgs<T> a{};
    in.take(a.q, "q", q, {kAny, kAny});
    a.width = q.size(1);
    in.take(a.k, "k", k, {kAny, a.width});
    const RowIndex of_atom(in, atoms, kAny, "atom_index", "atom_offsets");
    const RowIndex of_node(in, nodes, of_atom.rows, {"node_index", "node_order", "node_offsets"});
    check_nodes(in.op, "q", q, of_atom);
    check_nodes(in.op, "k", k, of_node);
    a.edges = of_atom.rows, a.atoms = of_atom.targets, a.nodes = of_node.targets;
    a.offsets = of_atom.offsets, a.atom_of = of_atom.index;
    a.node_of = of_node.index, a.order = of_node.order, a.ends = of_node.offsets;
    in.take(a.bias, "bias", bias, {a.edges, kAny});
    a.heads = bias.size(1), a.scale = static_cast<T>(scale);
    in.take(a.fades, "fades", fades, {a.edges, 1});
    in.take(a.nothing, "nothing", nothing, {a.heads});
    if (a.heads < 1 || a.width % a.heads)
      fail(in.op, "argument `bias` is of ", a.heads, " heads, expected a divisor of the ", a.width,
           " channels of `q`");
    return a;
  }

  static Tensor edge_softmax(Checked<Device>& in, EdgeSoftmaxArgs<T>& a) {
    Tensor y = in.result(a.y, {a.edges, a.heads});
    run_edge_softmax(in.op, a);
    return y;
  }

  static Outputs<4> edge_softmax_backward(Checked<Device>& in, EdgeSoftmaxArgs<T>& a, Input grad) {
    in.give(a.grad, "grad", grad, {a.edges, a.heads});
    Tensor by_bias = in.result(a.y, {a.edges, a.heads}), by_fades = in.result(a.by_fades, {a.edges, 1});
    Tensor by_q = in.result(a.by_q, {a.atoms, a.width}), by_k = in.result(a.by_k, {a.nodes, a.width});
    run_edge_softmax(in.op, a);
    return {by_q, by_k, by_bias, by_fades};
  }

  MDOPS_IMPLEMENT_FLOATS(EdgeSoftmaxOps, edge_softmax, edge_softmax_backward)
};

}  // namespace mdops
