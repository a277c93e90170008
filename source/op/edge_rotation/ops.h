// The ops on coefficients in the frames of edges. A device implements overloads of `run_rotation` for an op
// call and a kernel's arguments.
#pragma once

#include "common/bind.h"
#include "edge_rotation/rotate.h"

namespace mdops {

template <class Device, class T>
struct EdgeRotationOps {
  static Tensor edge_rotate(Checked<Device>& in, Input turn, Input x, NodeIndex index) {
    RotateArgs<T> a{};
    in.place(a.turn, "turn", turn, {kAny, kAny, kAny});
    in.place(a.x.x, "x", x, {kAny, turn.size(2), kAny});
    take_nodes(in, a, x, index, turn.size(0), turn.size(1));
    Tensor y = in.result(a.y, {a.shape.edges, a.shape.rows, a.shape.channels});
    run_rotation(in.op, a);
    return y;
  }

  static Tensor edge_rotate_sum(Checked<Device>& in, Input turn, Input y, NodeIndex index) {
    return sum(in, taken(in, turn, y, std::nullopt, index));
  }

  static Tensor edge_rotate_back(Checked<Device>& in, Input turn, Input y, Input weight, NodeIndex index) {
    return sum(in, taken(in, turn, y, weight, index));
  }

  // The gradients by turn, y and weight.
  static Outputs<3> edge_rotate_back_backward(Checked<Device>& in, Input grad, Input turn, Input y,
                                              Input weight, NodeIndex index) {
    const auto of = taken(in, turn, y, weight, index);
    const auto [edges, nodes, rows, columns, channels] = of.shape;
    NodeRows<T> grads{nullptr, of.index, nodes};
    in.place(grads.x, "grad", grad, {nodes, columns, channels});
    RotateArgs<T> a{of.shape, of.turn, grads, nullptr, of.weight};
    RotateOuterArgs<T> outer{of.shape, of.y, grads, nullptr, of.weight, of.turn};
    Tensor by_turn = in.result(outer.turn, {edges, rows, columns});
    Tensor by_y = in.result(a.y, {edges, rows, channels}), by_weight = in.result(outer.by_weight, {edges, 1});
    run_rotation(in.op, a);
    run_rotation(in.op, outer);
    return {by_turn, by_y, by_weight};
  }

  static Tensor edge_rotate_outer(Checked<Device>& in, Input y, Input x, NodeIndex index) {
    RotateOuterArgs<T> a{};
    in.place(a.y, "y", y, {kAny, kAny, kAny});
    in.place(a.x.x, "x", x, {kAny, kAny, y.size(2)});
    take_nodes(in, a, x, index, y.size(0), y.size(1));
    Tensor turn = in.result(a.turn, {a.shape.edges, a.shape.rows, a.shape.columns});
    run_rotation(in.op, a);
    return turn;
  }

  MDOPS_IMPLEMENT_FLOATS(EdgeRotationOps, edge_rotate, edge_rotate_sum, edge_rotate_outer, edge_rotate_back,
                         edge_rotate_back_backward)

 private:
  // Takes the rows of nodes `x` of edges with `rows` rows in their frames.
  static void take_nodes(Checked<Device>& in, auto& a, Input x, NodeIndex index, int64_t edges,
                         int64_t rows) {
    const RowIndex of(in, index, edges);
    check_rotation(in.op, of, x);
    a.x.index = of.index, a.x.nodes = of.targets;
    a.shape = {edges, of.targets, rows, x.size(1), x.size(2)};
  }

  static RotateSumArgs<T> taken(Checked<Device>& in, Input turn, Input y, const Optional& weight,
                                NodeIndex index) {
    RotateSumArgs<T> a{};
    in.place(a.turn, "turn", turn, {kAny, kAny, kAny});
    in.place(a.y, "y", y, {turn.size(0), turn.size(1), kAny});
    in.take(a.weight, "weight", weight, {turn.size(0), 1});
    const RowIndex of(in, index, turn.size(0));
    check_columns(in.op, turn.size(2));
    a.shape = {of.rows, of.targets, turn.size(1), turn.size(2), y.size(2)};
    a.index = of.index, a.order = of.order, a.offsets = of.offsets;
    return a;
  }

  static Tensor sum(Checked<Device>& in, RotateSumArgs<T> a) {
    Tensor x = in.result(a.x, {a.shape.nodes, a.shape.columns, a.shape.channels});
    run_rotation(in.op, a);
    return x;
  }
};

template <class Call, class Args>
void rotate(const Call& op, const Args& args) {
  run_rotation(op, args);
}

}  // namespace mdops
