// The ops of convolutions along edges. A device has `run_convolution`, one for each of what a pass gives.
#pragma once

#include "common/bind.h"
#include "edge_convolution/edge_convolution.h"
#include "graph/row_index.h"

namespace mdops {

// What a pass of `run_convolution` gives.
enum class ConvolutionPass { by_a, by_x, by_edges, by_weight };

struct EdgeConvolutionInputs {
  RowIndex of_a, of_x;
  int64_t rows;

  EdgeConvolutionInputs(const Op& op, const Tensor& a_index, const std::optional<Tensor>& a_order,
                        const Tensor& a_offsets, const Tensor& x_index, const std::optional<Tensor>& x_order,
                        const Tensor& x_offsets, int64_t rows_)
      : of_a(op, a_index, a_order, a_offsets, rows_, {"a_index", "a_order", "a_offsets"}),
        of_x(op, x_index, x_order, x_offsets, rows_, {"x_index", "x_order", "x_offsets"}),
        rows(rows_) {}

  template <class T>
  static NodeRows<T> nodes(const Tensor* x, const RowIndex& of) {
    return {data_of(x), data_of(of.index), of.targets};
  }
  template <class T>
  static void sums_of(const RowIndex& of, EdgeConvolutionArgs<T>& args) {
    args.index = data_of(of.index), args.order = of.order_data();
    args.offsets = data_of(of.offsets), args.targets = of.targets;
  }
};

template <class Device>
struct EdgeConvolutionOps {
  using Index = const Tensor&;
  using Order = const std::optional<Tensor>&;

  static Tensor edge_convolution(const Tensor& x_, const Tensor& b, const Tensor& w, const Tensor& t,
                                 const Tensor& weight, Index x_index, Order x_order, Index x_offsets,
                                 Index a_index, Order a_order, Index a_offsets) {
    const auto op = Device::make("edge_convolution", "x", x_);
    const Tensor x = Device::placed(float_input(op, "x", x_, {kAny, kAny}));
    return sums<ConvolutionPass::by_a>(op, x, kAny, b, w, t, weight, a_index, a_order, a_offsets, x_index,
                                       x_order, x_offsets);
  }

  static Tensor edge_convolution_nodes(const Tensor& a_, const Tensor& b, const Tensor& w, const Tensor& t,
                                       const Tensor& weight, Index a_index, Order a_order, Index a_offsets,
                                       Index x_index, Order x_order, Index x_offsets) {
    const auto op = Device::make("edge_convolution_nodes", "a", a_);
    const Tensor a = Device::placed(float_input(op, "a", a_, {kAny, kAny, kAny}));
    return sums<ConvolutionPass::by_x>(op, a, turns_of(op, a), b, w, t, weight, a_index, a_order, a_offsets,
                                       x_index, x_order, x_offsets);
  }

  // By b, w and t; without b (E, 0) that by w is empty.
  static Outputs<3> edge_convolution_edges(const Tensor& a, const Tensor& x, const Tensor& b, const Tensor& w,
                                           const Tensor& weight, Index a_index, Order a_order,
                                           Index a_offsets, Index x_index, Order x_order, Index x_offsets) {
    const auto op = Device::make("edge_convolution_edges", "a", a);
    return by_edges(op, a, nullptr, x, b, w, nullptr, weight, a_index, a_order, a_offsets, x_index, x_order,
                    x_offsets);
  }

  // The same with sums of the edges' own numbers.
  static Outputs<3> edge_convolution_own(const Tensor& a, const Tensor& own, const Tensor& x, const Tensor& b,
                                         const Tensor& w, const Tensor& t, const Tensor& weight,
                                         Index a_index, Order a_order, Index a_offsets, Index x_index,
                                         Order x_order, Index x_offsets) {
    const auto op = Device::make("edge_convolution_own", "a", a);
    return by_edges(op, a, &own, x, b, w, &t, weight, a_index, a_order, a_offsets, x_index, x_order,
                    x_offsets);
  }

  static Tensor edge_convolution_weight(const Tensor& a_, const Tensor& x_, const Tensor& b_,
                                        const Tensor& w_, Index a_index, Order a_order, Index a_offsets,
                                        Index x_index, Order x_order, Index x_offsets) {
    const auto op = Device::make("edge_convolution_weight", "a", a_);
    const Tensor a = Device::placed(float_input(op, "a", a_, {kAny, kAny}));
    const ScalarType dtype = a.scalar_type();
    const Tensor x = Device::placed(input(op, "x", x_, dtype, {kAny, a.size(1)}));
    const Tensor b = Device::placed(input(op, "b", b_, dtype, {kAny, kAny}));
    const EdgeConvolutionInputs in(op, a_index, a_order, a_offsets, x_index, x_order, x_offsets, b.size(0));
    check_nodes(op, "a", a, in.of_a), check_nodes(op, "x", x, in.of_x);
    const Tensor w = input(op, "w", w_, dtype, {in.rows});
    Tensor y = empty(op, {b.size(1), a.size(1)}, dtype);
    dispatch_float(op, dtype, [&]<class T>(T) {
      auto args = arguments<T>(in, &a, &x, y, 0);
      args.b = data_of(b), args.w = data_of(w);
      args.weight = nullptr, args.by_weight = data_of(y);
      run_convolution<ConvolutionPass::by_weight>(op, args);
    });
    return y;
  }

  // A CPU has `edge_convolution_own`, too.
  MDOPS_IMPLEMENT(EdgeConvolutionOps, edge_convolution, edge_convolution_nodes, edge_convolution_edges,
                  edge_convolution_weight)

 private:
  template <class Call>
  static Outputs<3> by_edges(const Call& op, const Tensor& a_, const Tensor* own_, const Tensor& x_,
                             const Tensor& b_, const Tensor& w_, const Tensor* t_, const Tensor& weight_,
                             Index a_index, Order a_order, Index a_offsets, Index x_index, Order x_order,
                             Index x_offsets) {
    const Tensor a = Device::placed(float_input(op, "a", a_, {kAny, kAny, kAny}));
    const ScalarType dtype = a.scalar_type();
    const int64_t turns = turns_of(op, a), width = a.size(2);
    const Tensor x = Device::placed(input(op, "x", x_, dtype, {kAny, width}));
    const Tensor w = input(op, "w", w_, dtype, {kAny});
    const EdgeConvolutionInputs in(op, a_index, a_order, a_offsets, x_index, x_order, x_offsets, w.size(0));
    check_nodes(op, "a", a, in.of_a), check_nodes(op, "x", x, in.of_x);
    const Tensor weight = Device::placed(input(op, "weight", weight_, dtype, {kAny, width}));
    const bool of_w = own_ || (b_.dim() == 2 && b_.size(1) > 0);
    const int64_t inputs = weight.size(0);
    const Tensor b = Device::placed(input(op, "b", b_, dtype, {in.rows, of_w ? inputs : int64_t{0}}));
    Tensor by_b = empty(op, {in.rows, inputs}, dtype);
    Tensor by_w = empty(op, {of_w ? in.rows : 0}, dtype), by_t = empty(op, {in.rows, turns}, dtype);
    std::optional<Tensor> own, t;
    if (own_) own = input(op, "own", *own_, dtype, {a.size(0), turns, inputs});
    if (own_) t = input(op, "t", *t_, dtype, {in.rows, turns});
    dispatch_float(op, dtype, [&]<class T>(T) {
      auto args = arguments<T>(in, &a, &x, weight, turns);
      args.w = data_of(w), args.by_b = data_of(by_b), args.by_t = data_of(by_t);
      if (of_w) args.b = data_of(b), args.by_w = data_of(by_w);
      args.own = data_of(own), args.t = data_of(t);
      run_convolution<ConvolutionPass::by_edges>(op, args);
    });
    return {by_b, by_w, by_t};
  }

  // By a, of the nodes' x, or by x, of their a.
  template <ConvolutionPass Pass, class Call>
  static Tensor sums(const Call& op, const Tensor& from, int64_t turns, const Tensor& b_, const Tensor& w_,
                     const Tensor& t_, const Tensor& weight_, Index a_index, Order a_order, Index a_offsets,
                     Index x_index, Order x_order, Index x_offsets) {
    constexpr bool kByA = Pass == ConvolutionPass::by_a;
    const ScalarType dtype = from.scalar_type();
    const int64_t width = from.size(kByA ? 1 : 2);
    const Tensor b = Device::placed(input(op, "b", b_, dtype, {kAny, kAny}));
    const Tensor t = Device::placed(input(op, "t", t_, dtype, {b.size(0), turns}));
    const EdgeConvolutionInputs in(op, a_index, a_order, a_offsets, x_index, x_order, x_offsets, b.size(0));
    check_nodes(op, kByA ? "x" : "a", from, kByA ? in.of_x : in.of_a);
    const Tensor w = input(op, "w", w_, dtype, {in.rows});
    const Tensor weight = Device::placed(input(op, "weight", weight_, dtype, {b.size(1), width}));
    Tensor y = kByA ? empty(op, {in.of_a.targets, 1 + t.size(1), width}, dtype)
                    : empty(op, {in.of_x.targets, width}, dtype);
    dispatch_float(op, dtype, [&]<class T>(T) {
      auto args = arguments<T>(in, kByA ? nullptr : &from, kByA ? &from : nullptr, weight, t.size(1));
      args.b = data_of(b), args.w = data_of(w), args.t = data_of(t);
      (kByA ? args.by_a : args.by_x) = y.mutable_data_ptr<T>();
      in.sums_of(kByA ? in.of_a : in.of_x, args);
      run_convolution<Pass>(op, args);
    });
    return y;
  }

  static int64_t turns_of(const Op& op, const Tensor& a) {
    if (a.size(1) < 1) fail(op, "argument `a` has no rows for each node, expected one or more");
    return a.size(1) - 1;
  }

  template <class T>
  static EdgeConvolutionArgs<T> arguments(const EdgeConvolutionInputs& in, const Tensor* a, const Tensor* x,
                                          const Tensor& weight, int64_t turns) {
    EdgeConvolutionArgs<T> args{};
    args.rows = in.rows, args.inputs = weight.size(0), args.turns = turns, args.width = weight.size(1);
    args.a = in.nodes<T>(a, in.of_a), args.x = in.nodes<T>(x, in.of_x);
    args.weight = data_of(weight);
    return args;
  }
};

}  // namespace mdops
