// The ops on weights of edges. A device has `run_edge_softmax`.
#pragma once

#include "common/bind.h"
#include "common/given.h"
#include "edge_softmax/edge_softmax.h"
#include "graph/row_index.h"

namespace mdops {

struct EdgeSoftmaxInputs {
  static constexpr const char* kFirst = "q";
  using Given = Listed<Times<8, const Tensor&>, const std::optional<Tensor>&, const Tensor&, double>;

  Tensor q, k;
  ScalarType dtype = q.scalar_type();
  RowIndex of_atom, of_node;
  Tensor bias, fades, nothing;
  double scale;

  EdgeSoftmaxInputs(const Op& op, const Tensor& q_, const Tensor& k_, const Tensor& bias_,
                    const Tensor& fades_, const Tensor& nothing_, const Tensor& atom_index,
                    const Tensor& atom_offsets, const Tensor& node_index,
                    const std::optional<Tensor>& node_order, const Tensor& node_offsets, double scale_)
      : q(float_input(op, "q", q_, {kAny, kAny})),
        k(input(op, "k", k_, q.scalar_type(), {kAny, q.size(1)})),
        of_atom(op, atom_index, std::nullopt, atom_offsets, kAny,
                {"atom_index", "atom_order", "atom_offsets"}),
        of_node(op, node_index, node_order, node_offsets, of_atom.rows,
                {"node_index", "node_order", "node_offsets"}),
        bias(input(op, "bias", bias_, dtype, {of_atom.rows, kAny})),
        fades(input(op, "fades", fades_, dtype, {of_atom.rows, 1})),
        nothing(input(op, "nothing", nothing_, dtype, {bias.size(1)})),
        scale(scale_) {
    check_nodes(op, "q", q, of_atom), check_nodes(op, "k", k, of_node);
    if (bias.size(1) < 1 || q.size(1) % bias.size(1))
      fail(op, "argument `bias` is of ", bias.size(1), " heads, expected a divisor of the ", q.size(1),
           " channels of `q`");
  }

  template <class T>
  EdgeSoftmaxArgs<T> args(Tensor& y) const {
    EdgeSoftmaxArgs<T> a{};
    a.edges = of_atom.rows, a.atoms = of_atom.targets, a.nodes = of_node.targets, a.heads = bias.size(1);
    a.width = q.size(1), a.scale = static_cast<T>(scale), a.q = data_of(q), a.k = data_of(k);
    a.bias = data_of(bias), a.fades = data_of(fades), a.nothing = data_of(nothing);
    a.offsets = data_of(of_atom.offsets), a.atom_of = data_of(of_atom.index);
    a.node_of = data_of(of_node.index), a.order = of_node.order_data(), a.ends = data_of(of_node.offsets);
    a.y = data_of(y);
    return a;
  }
};

template <class Device>
struct EdgeSoftmaxOps {
  using Call = typename Device::Call;

  static Tensor edge_softmax(const Call& op, const EdgeSoftmaxInputs& in) {
    Tensor y = empty(op, {in.of_atom.rows, in.bias.size(1)}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) { run_edge_softmax(op, in.args<T>(y)); });
    return y;
  }

  static Outputs<4> edge_softmax_backward(const Call& op, const EdgeSoftmaxInputs& in, const Tensor& grad_) {
    const Tensor grad = input(op, "grad", grad_, in.dtype, {in.of_atom.rows, in.bias.size(1)});
    Tensor by_bias = empty(op, {in.of_atom.rows, in.bias.size(1)}, in.dtype);
    Tensor by_fades = empty(op, {in.of_atom.rows, 1}, in.dtype);
    Tensor by_q = empty(op, {in.q.size(0), in.q.size(1)}, in.dtype);
    Tensor by_k = empty(op, {in.k.size(0), in.k.size(1)}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>(by_bias);
      args.grad = given<T>(grad), args.by_fades = data_of(by_fades);
      args.by_q = data_of(by_q), args.by_k = data_of(by_k);
      run_edge_softmax(op, args);
    });
    return {by_q, by_k, by_bias, by_fades};
  }

  MDOPS_IMPLEMENT(EdgeSoftmaxOps, edge_softmax, edge_softmax_backward)
};

}  // namespace mdops
