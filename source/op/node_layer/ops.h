// The ops of a layer's nodes.
#pragma once

#include "common/activation_code.h"
#include "common/bind.h"
#include "common/given.h"
#include "node_layer/node_layer.h"

namespace mdops {

struct NodeLayerInputs {
  static constexpr const char* kFirst = "n";
  using Given =
      Listed<Times<10, const Tensor&>, bool, double, Times<2, int64_t>, double, const std::optional<Tensor>&>;

  Tensor n;
  ScalarType dtype = n.scalar_type();
  int64_t rows = n.size(0), width = n.size(1);
  Tensor v, e;
  bool has_own, has_sum, has_edges = e.size(1) > 0;
  Tensor own, own_bias, own_factor, sum_factor, every, bias, factor;
  int64_t inputs = every.size(0), axis;
  bool takes_nodes;
  double keep, threshold;
  Activation activation;
  std::optional<Tensor> packed;

  NodeLayerInputs(const Op& op, const Tensor& n_, const Tensor& v_, const Tensor& e_, const Tensor& own_,
                  const Tensor& own_bias_, const Tensor& own_factor_, const Tensor& sum_factor_,
                  const Tensor& every_, const Tensor& bias_, const Tensor& factor_, bool takes_nodes_,
                  double keep_, int64_t axis_, int64_t activation_, double threshold_,
                  const std::optional<Tensor>& packed_)
      : n(float_input(op, "n", n_, {kAny, kAny})),
        v(input(op, "v", v_, dtype, {rows, kAny, width})),
        e(input(op, "e", e_, dtype, {rows, kAny, kAny})),
        has_own(own_.numel() > 0),
        has_sum(sum_factor_.numel() > 0),
        own(input(op, "own", own_, dtype, {has_own ? width : 0, has_own ? width : 0})),
        own_bias(input(op, "own_bias", own_bias_, dtype, {has_own ? width : 0})),
        own_factor(input(op, "own_factor", own_factor_, dtype, {has_own ? width : 0})),
        sum_factor(input(op, "sum_factor", sum_factor_, dtype, {has_sum ? width : 0})),
        every(input(op, "every", every_, dtype, {kAny, width})),
        bias(input(op, "bias", bias_, dtype, {width})),
        factor(input(op, "factor", factor_, dtype, {width})),
        axis(axis_),
        takes_nodes(takes_nodes_),
        keep(keep_),
        threshold(threshold_),
        activation(activation_of(op, activation_)),
        packed(packed_) {
    const int64_t sums = v.size(1), edges = e.size(1), edge_width = e.size(2);
    if (sums != 0 && sums != 1 && sums != 4)
      fail(op, "argument `v` has ", sums, " rows for each node, expected 0, 1 or 4");
    if (edges != 0 && edges != 3)
      fail(op, "argument `e` has ", edges, " rows for each node, expected 0 or 3");
    if (has_sum && sums == 0) fail(op, "argument `v` has no rows, and `sum_factor` multiplies the first");
    if (axis < 0 || (sums == 4 && axis > width) || (has_edges && axis > edge_width))
      fail(op, "argument `axis` is ", axis, ", expected no more than a sum has columns");
    const int64_t wanted =
        (takes_nodes ? width : 0) + (has_edges ? axis * edge_width : 0) + (sums == 4 ? axis * width : 0);
    if (inputs != wanted)
      fail(op,
           "argument `every` has " + std::to_string(inputs) + " rows, expected " + std::to_string(wanted));
  }

  template <class T>
  NodeLayerArgs<T> args() const {
    const auto at = [](const Tensor& t, bool there = true) { return data_of(there ? &t : nullptr); };
    NodeLayerArgs<T> a{};
    a.rows = rows, a.width = width, a.edge_width = e.size(2), a.sums = v.size(1), a.axis = axis;
    a.inputs = inputs, a.takes_nodes = takes_nodes, a.keep = static_cast<T>(keep);
    a.activation = activation, a.threshold = static_cast<T>(threshold);
    a.n = at(n), a.v = at(v), a.e = at(e, has_edges);
    a.own = at(own, has_own), a.own_bias = at(own_bias), a.own_factor = at(own_factor);
    a.sum_factor = at(sum_factor, has_sum), a.every = at(every), a.bias = at(bias), a.factor = at(factor);
    return a;
  }
};

template <class Device>
struct NodeLayerOps {
  using Call = typename Device::Call;

  static Outputs<3> node_layer(const Call& op, const NodeLayerInputs& in) {
    Tensor out = empty(op, {in.rows, in.width}, in.dtype), z = empty(op, {in.rows, in.width}, in.dtype);
    Tensor z_own = empty(op, {in.has_own ? in.rows : 0, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.out = data_of(out), args.z = data_of(z);
      args.z_own = data_of(z_own);
      run_node_layer(op, args, in.packed);
    });
    return {out, z, z_own};
  }

  // By n, v and e.
  static Outputs<3> node_layer_backward(const Call& op, const NodeLayerInputs& in, const Tensor& grad,
                                        const Tensor& z_, const Tensor& z_own_) {
    const Tensor by = input(op, "grad", grad, in.dtype, {in.rows, in.width});
    const Tensor z = input(op, "z", z_, in.dtype, {in.rows, in.width});
    const Tensor z_own = input(op, "z_own", z_own_, in.dtype, {in.has_own ? in.rows : 0, in.width});
    Tensor by_n = empty(op, {in.rows, in.width}, in.dtype);
    Tensor by_v = empty(op, {in.rows, in.v.size(1), in.width}, in.dtype);
    Tensor by_e = empty(op, {in.rows, in.e.size(1), in.e.size(2)}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.grad = given<T>(by);
      // Which this pass reads alone.
      args.z = const_cast<T*>(z.const_data_ptr<T>()), args.z_own = const_cast<T*>(z_own.const_data_ptr<T>());
      args.out = data_of(by_n), args.by_v = data_of(by_v);
      args.by_e = data_of(by_e);
      run_node_layer(op, args, in.packed);
    });
    return {by_n, by_v, by_e};
  }

  // The weights as `node_layer` reads them, or with `back` its gradient.
  static Tensor node_layer_pack(const Tensor& own_, const Tensor& own_bias_, const Tensor& every_,
                                const Tensor& bias_, bool back) {
    const auto op = Device::make("node_layer_pack", "every", every_);
    const Tensor every = float_input(op, "every", every_, {kAny, kAny});
    const ScalarType dtype = every.scalar_type();
    const int64_t width = every.size(1), of_own = own_.numel() > 0 ? width : 0;
    const Tensor own = input(op, "own", own_, dtype, {of_own, of_own});
    const Tensor own_bias = input(op, "own_bias", own_bias_, dtype, {of_own});
    const Tensor bias = input(op, "bias", bias_, dtype, {width});
    return dispatch_float(op, dtype, [&]<class T>(T) {
      NodeLayerArgs<T> args{};
      args.width = width, args.inputs = every.size(0), args.every = data_of(every);
      args.own = data_of(of_own ? &own : nullptr), args.own_bias = data_of(own_bias);
      args.bias = data_of(bias);
      if (back) args.grad = given<T>(every);  // which tells the passes apart
      return pack_node_layer(op, args);
    });
  }

  MDOPS_IMPLEMENT(NodeLayerOps, node_layer, node_layer_pack, node_layer_backward)
};

}  // namespace mdops
