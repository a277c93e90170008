// The ops on weights of edges, their arguments checked at entry. What a device does are overloads of
// `run_edge_softmax` on the call of an op.
#pragma once

#include <optional>
#include <string>
#include <tuple>

#include "common/bind.h"
#include "common/given.h"
#include "common/tensor.h"
#include "edge_softmax/edge_softmax.h"
#include "graph/row_index.h"

namespace mdops {

struct EdgeSoftmaxInputs {
  static constexpr const char* kFirst = "q";
  using Given = Listed<Times<8, const Tensor&>, const std::optional<Tensor>&, const Tensor&, double>;

  Tensor q, k;
  ScalarType dtype;
  RowIndex of_atom, of_node;
  Tensor bias, fades, nothing;
  double scale;

  EdgeSoftmaxInputs(const Op& op, const Tensor& q_, const Tensor& k_, const Tensor& bias_,
                    const Tensor& fades_, const Tensor& nothing_, const Tensor& atom_index,
                    const Tensor& atom_offsets, const Tensor& node_index,
                    const std::optional<Tensor>& node_order, const Tensor& node_offsets, double scale_)
      : q(float_input(op, "q", q_, {kAny, kAny})),
        k(input(op, "k", k_, q.scalar_type(), {kAny, q.size(1)})),
        dtype(q.scalar_type()),
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
      fail(op, "argument `bias` is of " + std::to_string(bias.size(1)) +
                   " heads, expected a divisor of the " + std::to_string(q.size(1)) + " channels of `q`");
  }

  template <class T>
  EdgeSoftmaxArgs<T> args(Tensor& y) const {
    return {of_atom.rows,
            of_atom.targets,
            of_node.targets,
            bias.size(1),
            q.size(1),
            static_cast<T>(scale),
            data_of(q),
            data_of(k),
            data_of(bias),
            data_of(fades),
            data_of(nothing),
            data_of(of_atom.offsets),
            data_of(of_atom.index),
            data_of(of_node.index),
            of_node.order_data(),
            data_of(of_node.offsets),
            nullptr,
            data_of(y)};
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

  static std::tuple<Tensor, Tensor, Tensor, Tensor> edge_softmax_backward(const Call& op,
                                                                          const EdgeSoftmaxInputs& in,
                                                                          const Tensor& grad_) {
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
