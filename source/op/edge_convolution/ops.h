// The ops of convolutions along edges. A device has `run_convolution`, one for each of what a pass gives.
#pragma once

#include "common/bind.h"
#include "edge_convolution/edge_convolution.h"
#include "graph/row_index.h"

namespace mdops {

// Results of a pass of `run_convolution`.
enum class ConvolutionPass { by_a, by_x, by_edges, by_weight };

template <class Device, class T>
struct EdgeConvolutionOps {
  static Tensor edge_convolution(Checked<Device>& in, Input x, Input b, Input w, Input t, Input weight,
                                 NodeIndex x_nodes, NodeIndex a_nodes) {
    EdgeConvolutionArgs<T> args{};
    in.place(args.x.x, "x", x, {kAny, kAny});
    args.width = x.size(1);
    take_edges(in, args, b, w, t, weight);
    const auto [of_a, of_x] = take_nodes(in, args, a_nodes, x_nodes);
    check_nodes(in.op, "x", x, of_x);
    set_sums(args, of_a);
    Tensor y = in.result(args.by_a, {args.targets, 1 + args.turns, args.width});
    run_convolution<ConvolutionPass::by_a>(in.op, args);
    return y;
  }

  static Tensor edge_convolution_nodes(Checked<Device>& in, Input a, Input b, Input w, Input t, Input weight,
                                       NodeIndex a_nodes, NodeIndex x_nodes) {
    EdgeConvolutionArgs<T> args{};
    take_a(in, args, a);
    const int64_t turns = args.turns;
    take_edges(in, args, b, w, t, weight, turns);
    const auto [of_a, of_x] = take_nodes(in, args, a_nodes, x_nodes);
    check_nodes(in.op, "a", a, of_a);
    set_sums(args, of_x);
    Tensor y = in.result(args.by_x, {args.targets, args.width});
    run_convolution<ConvolutionPass::by_x>(in.op, args);
    return y;
  }

  // By b, w and t; without b (E, 0) that by w is empty.
  static Outputs<3> edge_convolution_edges(Checked<Device>& in, Input a, Input x, Input b, Input w,
                                           Input weight, NodeIndex a_nodes, NodeIndex x_nodes) {
    return by_edges(in, a, nullptr, x, b, w, nullptr, weight, a_nodes, x_nodes);
  }

  // The same with sums of the edges' own numbers.
  static Outputs<3> edge_convolution_own(Checked<Device>& in, Input a, Input own, Input x, Input b, Input w,
                                         Input t, Input weight, NodeIndex a_nodes, NodeIndex x_nodes) {
    return by_edges(in, a, &own, x, b, w, &t, weight, a_nodes, x_nodes);
  }

  static Tensor edge_convolution_weight(Checked<Device>& in, Input a, Input x, Input b, Input w,
                                        NodeIndex a_nodes, NodeIndex x_nodes) {
    EdgeConvolutionArgs<T> args{};
    in.place(args.a.x, "a", a, {kAny, kAny});
    args.width = a.size(1);
    in.place(args.x.x, "x", x, {kAny, args.width});
    in.place(args.b, "b", b, {kAny, kAny});
    args.rows = b.size(0), args.inputs = b.size(1);
    const auto [of_a, of_x] = take_nodes(in, args, a_nodes, x_nodes);
    check_nodes(in.op, "a", a, of_a);
    check_nodes(in.op, "x", x, of_x);
    in.take(args.w, "w", w, {args.rows});
    Tensor y = in.result(args.by_weight, {args.inputs, args.width});
    run_convolution<ConvolutionPass::by_weight>(in.op, args);
    return y;
  }

  // A CPU has `edge_convolution_own`, too.
  MDOPS_IMPLEMENT_FLOATS(EdgeConvolutionOps, edge_convolution, edge_convolution_nodes, edge_convolution_edges,
                         edge_convolution_weight)

 private:
  // The rows' nodes of both kinds.
  static std::pair<RowIndex, RowIndex> take_nodes(Checked<Device>& in, EdgeConvolutionArgs<T>& args,
                                                  NodeIndex a_nodes, NodeIndex x_nodes) {
    const RowIndex of_a(in, a_nodes, args.rows, {"a_index", "a_order", "a_offsets"});
    const RowIndex of_x(in, x_nodes, args.rows, {"x_index", "x_order", "x_offsets"});
    args.a.index = of_a.index, args.a.nodes = of_a.targets;
    args.x.index = of_x.index, args.x.nodes = of_x.targets;
    return {of_a, of_x};
  }

  static void set_sums(EdgeConvolutionArgs<T>& args, const RowIndex& of) {
    args.index = of.index, args.order = of.order, args.offsets = of.offsets, args.targets = of.targets;
  }

  static void take_a(Checked<Device>& in, EdgeConvolutionArgs<T>& args, Input a) {
    in.place(args.a.x, "a", a, {kAny, kAny, kAny});
    args.turns = a.size(1) - 1, args.width = a.size(2);
    if (args.turns < 0) fail(in.op, "argument `a` has no rows for each node, expected one or more");
  }

  static void take_edges(Checked<Device>& in, EdgeConvolutionArgs<T>& args, Input b, Input w, Input t,
                         Input weight, int64_t turns = kAny) {
    in.place(args.b, "b", b, {kAny, kAny});
    args.rows = b.size(0), args.inputs = b.size(1);
    in.place(args.t, "t", t, {args.rows, turns});
    args.turns = t.size(1);
    in.take(args.w, "w", w, {args.rows});
    in.place(args.weight, "weight", weight, {args.inputs, args.width});
  }

  static Outputs<3> by_edges(Checked<Device>& in, Input a, const Tensor* own, Input x, Input b, Input w,
                             const Tensor* t, Input weight, NodeIndex a_nodes, NodeIndex x_nodes) {
    EdgeConvolutionArgs<T> args{};
    take_a(in, args, a);
    in.place(args.x.x, "x", x, {kAny, args.width});
    in.take(args.w, "w", w, {kAny});
    args.rows = w.size(0);
    const auto [of_a, of_x] = take_nodes(in, args, a_nodes, x_nodes);
    check_nodes(in.op, "a", a, of_a);
    check_nodes(in.op, "x", x, of_x);
    in.place(args.weight, "weight", weight, {kAny, args.width});
    args.inputs = weight.size(0);
    const bool of_w = own || (b.dim() == 2 && b.size(1) > 0);
    in.place(args.b, "b", b, {args.rows, of_w ? args.inputs : 0});
    if (own) {
      in.take(args.own, "own", *own, {a.size(0), args.turns, args.inputs});
      in.take(args.t, "t", *t, {args.rows, args.turns});
    }
    Tensor by_b = in.result(args.by_b, {args.rows, args.inputs});
    Tensor by_w = in.result(args.by_w, {of_w ? args.rows : 0});
    Tensor by_t = in.result(args.by_t, {args.rows, args.turns});
    if (!of_w) args.b = args.by_w = nullptr;
    run_convolution<ConvolutionPass::by_edges>(in.op, args);
    return {by_b, by_w, by_t};
  }
};

}  // namespace mdops
