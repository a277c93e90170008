// The ops on layers of edges. A device implements overloads of `run_so2` and `run_so2_messages` for its op
// calls.
#pragma once

#include "common/bind.h"
#include "edge_frames/frames.h"
#include "edge_rotation/rotate.h"
#include "gemm/matmul.h"
#include "graph/row_index.h"
#include "order_mix/mix.h"
#include "so2_layer/so2_layer.h"

namespace mdops {

// The weights of a layer for rows of `channels` channels.
template <class Device, class T>
So2Args<T> take_layer(Checked<Device>& in, int64_t edges, int64_t rows, int64_t channels, Input weight,
                      Input both, const Optional& gate, const std::string& matmul_name, T) {
  So2Args<T> a{edges, (rows - 1) / 3, channels};
  in.place(a.weight, "weight", weight, {a.middle(), a.middle()});
  in.place(a.both, "both", both, {a.side(), 2 * a.side()});
  const bool gated = gate && gate->numel();
  in.place(a.gate, "gate", gate, {gated ? channels : 0, gated ? a.side() : 0});
  if (!gated) a.gate = nullptr;
  const Matmul matmul = matmul_of(in.op, matmul_name);
  a.parts = matmul == Matmul::tf32 || matmul == Matmul::bf16 ? 1 : 2;
  if (rows < 1 || rows != 3 * a.degrees + 1 || channels < 1)
    fail(in.op, "argument `x` has ", rows, " rows of ", channels,
         " channels, expected 3 L + 1 rows and 1 channel or more");
  if (in.op.on_cpu()) refuse_tf32(in.op, matmul);
  return a;
}

template <class Device, class T>
struct So2LayerOps {
  static Tensor so2_layer(Checked<Device>& in, Input x, Input weight, Input both, Input gate,
                          const std::string& matmul, int64_t groups) {
    return run(in, taken(in, x, weight, both, gate, matmul, groups));
  }

  static Tensor so2_layer_backward(Checked<Device>& in, Input grad, Input x, Input weight, Input both,
                                   Input gate, const std::string& matmul, int64_t groups, Input result) {
    So2Args<T> a = taken(in, x, weight, both, gate, matmul, groups);
    in.give(a.grad, "grad", grad, {a.edges, x.size(1), a.channels});
    in.place(a.result, "result", result, {a.edges, x.size(1), a.channels});
    return run(in, a);
  }

  MDOPS_IMPLEMENT_FLOATS(So2LayerOps, so2_layer, so2_layer_backward)

 private:
  static So2Args<T> taken(Checked<Device>& in, Input x, Input weight, Input both, Input gate,
                          const std::string& matmul, int64_t groups) {
    const T* rows;
    in.place(rows, "x", x, {kAny, kAny, kAny});
    So2Args<T> a = take_layer(in, x.size(0), x.size(1), x.size(2), weight, both, gate, matmul, T{});
    if (groups < 1 || a.channels % groups != 0)
      fail(in.op, "argument `groups` is ", groups, ", expected a divisor of ", a.channels, " channels");
    a.x = rows, a.groups = groups;
    return a;
  }

  // y, or the gradient by x.
  static Tensor run(Checked<Device>& in, So2Args<T> a) {
    Tensor y = in.result(a.y, {a.edges, 3 * a.degrees + 1, a.channels});
    run_so2(in.op, a);
    return y;
  }
};

inline OrderShape orders_of(const RotationShape& shape, int64_t degree) {
  return {shape.edges, degree, degree > 0, shape.columns};
}

// Runs the parts of a message as separate ops, with an array for each result.
template <class AnyOp, class T>
void run_one_by_one(const AnyOp& op, So2Messages<T>& given) {
  std::vector<So2Args<T>>& layers = given.layers;
  const size_t last = layers.size() - 1;
  const RotationShape& shape = given.shape;
  const FrameShape frames{shape.edges, given.degree > 0};
  const OrderShape orders = orders_of(shape, given.degree);
  Tensors kept;
  const auto next = [&](int64_t numbers) -> T* {
    kept.push_back(empty(op, {shape.edges, shape.rows, numbers}, kDtype<T>));
    return data_of(kept.back());
  };
  const EdgesOfNodes &neighbors = given.of_neighbor, &centers = given.of_center;
  T *const turn = next(shape.columns), *const mixed = next(shape.columns),
           *const first = next(shape.channels);
  Tensor harmonics = empty(op, {shape.edges, shape.columns}, kDtype<T>);  // not used
  make_frames(op, FrameArgs<T>{frames, given.vectors, data_of(harmonics), turn}, given.degree);
  mix_orders(op, OrderMixArgs<T>{orders, false, given.mixture, turn, mixed});
  rotate(op, given.rotated(mixed, first));
  for (size_t n = 0; n <= last; ++n) {
    layers[n].x = n == 0 ? first : layers[n - 1].y;
    layers[n].y = n < last ? next(shape.channels) : given.y;
    if (n < last || !given.grad) run_so2(op, layers[n]);
  }
  if (!given.grad)
    return rotate(op, RotateSumArgs<T>{given.of_atoms(), turn, given.y, centers.index, centers.order,
                                       centers.offsets, given.sums, given.weight});
  T* grad = next(shape.channels);
  T* const by_turn = next(shape.columns);
  rotate(op, RotateArgs<T>{given.of_atoms(), turn, given.grads(), grad, given.weight});
  rotate(op, RotateOuterArgs<T>{given.of_atoms(), given.y, given.grads(), by_turn, given.weight, turn,
                                given.by_weight});
  for (size_t n = last + 1; n-- > 0;) {
    layers[n].grad = grad, layers[n].result = layers[n].y;
    layers[n].y = grad = next(shape.channels);
    run_so2(op, layers[n]);
  }
  T* const by_mixed = next(shape.columns);
  rotate(op, RotateOuterArgs<T>{shape, grad, given.rotated(mixed, nullptr).x, by_mixed});
  rotate(op, RotateSumArgs<T>{shape, mixed, grad, neighbors.index, neighbors.order, neighbors.offsets,
                              given.by_x});
  mix_orders(op, OrderOuterArgs<T>{orders, turn, by_mixed, given.by_mixture});
  mix_orders(op, OrderMixArgs<T>{orders, true, given.mixture, by_mixed, by_turn, by_turn});
  harmonics = zeros(op, {shape.edges, shape.columns}, kDtype<T>);
  make_frames(op, FrameBackwardArgs<T>{frames, given.vectors, data_of(harmonics), by_turn, given.by_vectors},
              given.degree);
}

// The ops on messages: from vectors and mixtures of edges, rows of neighbours, weights of edges, and layers.
// The first layers have gates.
template <class Device, class T>
struct So2MessageOps {
  using Order = Optional;

  static So2Messages<T> arguments(Checked<Device>& in, Input vectors, Input mixture, Input x, Input weight,
                                  NodeIndex nodes, NodeIndex centers, const Tensors& weights,
                                  const Tensors& both, const Tensors& gates, const std::string& matmul) {
    So2Messages<T> a{};
    in.take(a.vectors, "vectors", vectors, {kAny, 3});
    const int64_t edges = vectors.size(0);
    in.take(a.mixture, "mixture", mixture, {edges, kAny});
    in.place(a.x, "x", x, {kAny, kAny, kAny});
    in.take(a.weight, "weight", weight, {edges, 1});
    const RowIndex of_neighbor(in, nodes, edges);
    const RowIndex of_center(in, centers, edges, {"center_index", "center_order", "center_offsets"});
    a.degree = degree_of(in.op, x);
    a.shape = {edges, x.size(0), 3 * a.degree + 1, x.size(1), x.size(2)};
    check_rotation(in.op, of_neighbor, x);
    a.of_neighbor = {of_neighbor.index, of_neighbor.order, of_neighbor.offsets, of_neighbor.targets};
    a.of_center = {of_center.index, of_center.order, of_center.offsets, of_center.targets};
    if (weights.empty() || both.size() != weights.size() || gates.size() > weights.size())
      fail(in.op, "arguments `weights`, `both` and `gates` have ", weights.size(), ", ", both.size(), " and ",
           gates.size(), " tensors, expected one of the first two for each layer, and as many gates at most");
    for (size_t n = 0; n < weights.size(); ++n)
      a.layers.push_back(take_layer(in, edges, a.shape.rows, a.shape.channels, weights[n], both[n],
                                    n < gates.size() ? Order(gates[n]) : std::nullopt, matmul, T{}));
    const int64_t numbers = orders_of(a.shape, a.degree).numbers();
    if (mixture.size(1) != numbers)
      fail(in.op, "argument `mixture` has ", mixture.size(1), " numbers of an edge, expected ", numbers);
    return a;
  }

  static Outputs<2> so2_messages(Checked<Device>& in, So2Messages<T>& a) {
    Tensor y =
        empty_result(in.op, {kept(in.op, a), a.shape.edges, a.shape.rows, a.shape.channels}, kDtype<T>);
    a.y = data_of(y);
    Tensor sums = in.result(a.sums, {a.of_center.nodes, a.shape.columns, a.shape.channels});
    run_so2_messages(in.op, a);
    return {sums, y};
  }

  static Outputs<4> so2_messages_backward(Checked<Device>& in, So2Messages<T>& a, Input grad, Input y) {
    const auto [edges, nodes, rows, columns, channels] = a.shape;
    in.take_saved(a.y, "y", y, {kept(in.op, a), edges, rows, channels});
    in.give(a.grad, "grad", grad, {a.of_center.nodes, columns, channels});
    Tensor by_vectors = in.result(a.by_vectors, {edges, 3});
    Tensor by_mixture = in.result(a.by_mixture, {edges, orders_of(a.shape, a.degree).numbers()});
    Tensor by_x = in.result(a.by_x, {nodes, columns, channels});
    Tensor by_weight = in.result(a.by_weight, {edges, 1});
    run_so2_messages(in.op, a);
    return {by_vectors, by_mixture, by_x, by_weight};
  }

  MDOPS_IMPLEMENT_FLOATS(So2MessageOps, so2_messages, so2_messages_backward)

 private:
  // How many layers' results are saved: the last one's; or, where a CPU goes by nodes and does not recompute
  // layers, those of all before it.
  static int64_t kept(const Op& op, const So2Messages<T>& a) {
    return op.on_cpu() && a.may_go_by_nodes() ? static_cast<int64_t>(a.layers.size()) - 1 : 1;
  }

  static int64_t degree_of(const Op& op, Input x) {
    int64_t degree = 0;
    while ((degree + 1) * (degree + 1) < x.size(1)) ++degree;
    if ((degree + 1) * (degree + 1) != x.size(1) || degree > kMostDegree)
      fail(op, "argument `x` has ", x.size(1), " columns, expected (L + 1)^2 of L up to ", kMostDegree);
    return degree;
  }
};

}  // namespace mdops
