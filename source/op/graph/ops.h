// The ops on graphs. A device has `run_graph` for each kernel's arguments.
#pragma once

#include <cmath>
#include <limits>

#include "common/bind.h"
#include "graph/edges.h"
#include "graph/segment_weights.h"
#include "graph/softmax.h"
#include "neighbor_rows/inputs.h"

namespace mdops {

// A count of things that fits into 32 bits.
inline int64_t count_of(const Op& op, const char* name, int64_t value) {
  if (value < 0 || value > INT32_MAX)
    fail(op, "argument `", name, "` is ", value, ", expected 0 or more, as 32 bits count");
  return value;
}

// Ops on indices only.
template <class Device>
struct GraphOps {
  static Tensor edge_reverse(Checked<Device>& in, Input i, Input j, Input images, Input offsets) {
    ReverseArgs a{};
    in.take(a.i, "i", i, {kAny});
    a.edges = i.size(0);
    in.take(a.j, "j", j, {a.edges});
    in.take(a.images, "images", images, {a.edges});
    a.atoms = take_offsets(in, a.offsets, offsets, a.edges);
    Tensor reverse = in.result(a.reverse, {a.edges});
    run_graph(in.op, a);
    return reverse;
  }

  static Outputs<2> edge_order(Checked<Device>& in, Input index, int64_t rows) {
    OrderArgs a{};
    a.rows = count_of(in.op, "rows", rows);
    in.take_range(a.index, "index", index, {kAny}, -1, rows);
    a.edges = count_of(in.op, "index", index.size(0));
    Tensor order = in.result(a.order, {a.edges}), offsets = in.result(a.offsets, {rows + 1});
    run_graph(in.op, a);
    return {order, offsets};
  }

  static Outputs<5> edge_angles(Checked<Device>& in, Input offsets, Input counts, int64_t edges,
                                int64_t capacity) {
    EdgeAngleArgs a{};
    a.edges = count_of(in.op, "edges", edges), a.capacity = count_of(in.op, "capacity", capacity);
    a.atoms = take_offsets(in, a.offsets, offsets, edges);
    in.take(a.counts, "counts", counts, {a.atoms});
    Tensor first = in.result(a.first, {capacity}), second = in.result(a.second, {capacity});
    Tensor mirror = in.result(a.mirror, {capacity}), starts = in.result(a.angle_offsets, {edges + 1});
    Tensor needed = in.result(a.needed, {2});
    for (int64_t i = 0; in.op.on_cpu() && i < a.atoms; ++i)
      if (!a.fits(i))
        fail(in.op, "argument `counts` has ", a.counts[i], " for atom ", i,
             ", expected 0 to the number of its edges");
    run_graph(in.op, a);
    return {first, second, mirror, starts, needed};
  }

  MDOPS_IMPLEMENT(GraphOps, edge_reverse, edge_order, edge_angles)
};

template <class Device, class T>
struct EdgeListOps {
  static Outputs<9> neighbor_edges(Checked<Device>& in, Input displacements, Input neighbors, Input images,
                                   Input counts, Input types, Input pair_mask, double cutoff,
                                   double angle_cutoff, int64_t edge_sel, int64_t angle_sel, int64_t nodes,
                                   int64_t capacity) {
    EdgeListArgs<T> a{take_slots(in, PairTensors{displacements, counts, types}, T{})};
    const auto [atoms, width] = std::pair(a.list.atoms, a.list.width);
    a.edge_sel = count_of(in.op, "edge_sel", edge_sel), a.nodes = count_of(in.op, "nodes", nodes);
    a.angle_sel = count_of(in.op, "angle_sel", angle_sel);
    a.capacity = count_of(in.op, "capacity", capacity);
    in.take_range(a.neighbors, "neighbors", neighbors, {atoms, width}, -1, nodes);
    in.take(a.images, "images", images, {atoms, width});
    in.take(a.pair_mask, "pair_mask", pair_mask, {a.list.ntypes, a.list.ntypes});
    if (!(cutoff > 0) || !std::isfinite(cutoff) || !(angle_cutoff >= 0) || !(angle_cutoff <= cutoff))
      fail(in.op, "arguments `cutoff` and `angle_cutoff` are ", cutoff, " and ", angle_cutoff,
           " A, expected a finite cutoff > 0 and one of angles from 0 to it");
    const T c = static_cast<T>(cutoff), of_angles = static_cast<T>(angle_cutoff);
    a.cutoff2 = c * c, a.angle_cutoff2 = of_angles * of_angles;
    if (!(of_angles > T(0))) a.angle_sel = 0;
    Tensor i = in.result(a.i, {capacity}), j = in.result(a.j, {capacity});
    Tensor of_edges = in.result(a.edge_images, {capacity}), slots = in.result(a.slots, {capacity});
    Tensor offsets = in.result(a.offsets, {atoms + 1}),
           edge_of_slot = in.result(a.edge_of_slot, {atoms, width});
    Tensor angle_neighbors = in.result(a.angle_neighbors, {atoms}), within = in.result(a.within, {atoms, 2});
    Tensor needed = in.result(a.needed, {2});
    run_graph(in.op, a);
    return {i, j, of_edges, slots, offsets, edge_of_slot, angle_neighbors, within, needed};
  }

  MDOPS_IMPLEMENT_FLOATS(EdgeListOps, neighbor_edges)
};

template <class Device, class T>
struct EdgeRowOps {
  static Tensor edge_gather(Checked<Device>& in, Input x, NodeIndex nodes, const Optional& base,
                            int64_t width) {
    GatherArgs<T> a{};
    in.place(a.x, "x", x, {kAny, kAny});
    const RowIndex of(in, nodes, kAny);
    check_nodes(in.op, "x", x, of);
    check_width(in.op, width, 0, x.size(1));
    a.index = of.index, a.rows = of.rows, a.sources = x.size(0), a.width = width, a.stride = x.size(1);
    in.place(a.base, "base", base, {a.rows, width});
    return gathered(in, a);
  }

  static Tensor edge_scatter(Checked<Device>& in, Input y, NodeIndex nodes, const Optional& base,
                             const Optional& more, int64_t width) {
    ScatterArgs<T> a{};
    in.place(a.y, "y", y, {kAny, kAny});
    a.stride = y.size(1), a.width = width;
    check_width(in.op, width, a.stride, std::numeric_limits<int32_t>::max());
    const RowIndex of(in, nodes, y.size(0));
    a.index = of.index, a.order = of.order, a.offsets = of.offsets;
    a.rows = of.rows, a.targets = of.targets;
    in.place(a.base, "base", base, {a.targets, width});
    const bool one = more && more->dim() == 2 && more->size(0) == 1;
    in.place(a.more, "more", more, {one ? 1 : a.targets, width});
    a.more_stride = one ? 0 : width;
    Tensor x = in.result(a.x, {a.targets, width});
    run_graph(in.op, a);
    return x;
  }

  static Tensor edge_product(Checked<Device>& in, Input x, NodeIndex x_nodes, Input y, NodeIndex y_nodes) {
    ProductArgs<T> a{};
    in.place(a.x.x, "x", x, {kAny, kAny});
    a.width = x.size(1);
    in.place(a.y.x, "y", y, {kAny, a.width});
    const RowIndex of_x(in, x_nodes, kAny, {"x_index", "x_order", "x_offsets"});
    a.rows = of_x.rows;
    const RowIndex of_y(in, y_nodes, a.rows, {"y_index", "y_order", "y_offsets"});
    set_nodes(in.op, a.x, "x", x, of_x);
    set_nodes(in.op, a.y, "y", y, of_y);
    Tensor z = in.result(a.z, {a.rows, a.width});
    run_graph(in.op, a);
    return z;
  }

  static Tensor edge_weighted_sum(Checked<Device>& in, Input weight, Input x, NodeIndex x_nodes,
                                  NodeIndex nodes) {
    WeightedSumArgs<T> a{};
    in.place(a.weight, "weight", weight, {kAny, kAny});
    a.rows = weight.size(0), a.width = weight.size(1);
    in.place(a.x.x, "x", x, {kAny, a.width});
    const RowIndex of_x(in, x_nodes, a.rows, {"x_index", "x_order", "x_offsets"});
    const RowIndex of(in, nodes, a.rows);
    set_nodes(in.op, a.x, "x", x, of_x);
    a.index = of.index, a.order = of.order, a.offsets = of.offsets, a.targets = of.targets;
    Tensor z = in.result(a.z, {a.targets, a.width});
    run_graph(in.op, a);
    return z;
  }

  static Tensor edge_permute(Checked<Device>& in, Input x, Input index, Input inverse) {
    GatherArgs<T> a{};
    in.place(a.x, "x", x, {kAny, kAny});
    a.sources = x.size(0), a.width = a.stride = x.size(1);
    in.take(a.index, "index", index, {kAny});
    a.rows = index.size(0);
    in.take(a.inverse, "inverse", inverse, {a.sources});
    check_inverse(in.op, "index", a.index, a.rows, a.inverse, a.sources);
    check_inverse(in.op, "inverse", a.inverse, a.sources, a.index, a.rows);
    return gathered(in, a);
  }

  MDOPS_IMPLEMENT_FLOATS(EdgeRowOps, edge_gather, edge_scatter, edge_product, edge_weighted_sum, edge_permute)

 private:
  static Tensor gathered(Checked<Device>& in, GatherArgs<T>& a) {
    Tensor y = in.result(a.y, {a.rows, a.width});
    run_graph(in.op, a);
    return y;
  }

  static void check_width(const Op& op, int64_t width, int64_t least, int64_t most) {
    if (width < least || width > most)
      fail(op, "argument `width` is ", width, ", expected ", least, " to ", most);
  }

  static void check_inverse(const Op& op, const char* name, const int32_t* to, int64_t count,
                            const int32_t* back, int64_t others) {
    check_range(op, name, to, count, -1, others);
    for (int64_t k = 0; op.on_cpu() && k < count; ++k)
      if (to[k] >= 0 && back[to[k]] != k)
        fail(op, "argument `", name, "` has ", to[k], " at ", k, ", from where the other leads to ",
             back[to[k]]);
  }
};

// Of rows of segments.
template <class Device, class T>
struct SegmentWeightOps {
  static SegmentWeightArgs<T> arguments(Checked<Device>& in, Input x, Input weight, Input nothing,
                                        Input offsets) {
    SegmentWeightArgs<T> a{};
    in.take(a.x, "x", x, {kAny, kAny});
    a.rows = x.size(0), a.columns = x.size(1);
    in.take(a.weight, "weight", weight, {a.rows, 1});
    in.take(a.nothing, "nothing", nothing, {a.columns});
    a.segments = take_offsets(in, a.offsets, offsets, a.rows);
    return a;
  }

  static Tensor segment_weights(Checked<Device>& in, SegmentWeightArgs<T>& a) {
    Tensor y = in.result(a.y, {a.rows, a.columns});
    run_graph(in.op, a);
    return y;
  }

  // By x, weight (of each column) and nothing (of each segment).
  static Outputs<3> segment_weights_backward(Checked<Device>& in, SegmentWeightArgs<T>& a, Input grad) {
    in.give(a.grad, "grad", grad, {a.rows, a.columns});
    Tensor by_x = in.result(a.y, {a.rows, a.columns});
    Tensor by_weight = in.result(a.by_weight, {a.rows, a.columns});
    Tensor by_nothing = in.result(a.by_nothing, {a.segments, a.columns});
    run_graph(in.op, a);
    return {by_x, by_weight, by_nothing};
  }

  static Outputs<4> segment_weights_backward_backward(Checked<Device>& in, SegmentWeightArgs<T>& a,
                                                      Input along_x, Input along_weight, Input along_nothing,
                                                      Input grad) {
    in.give(a.along_x, "along_x", along_x, {a.rows, a.columns});
    in.take(a.along_weight, "along_weight", along_weight, {a.rows, a.columns});
    in.take(a.along_nothing, "along_nothing", along_nothing, {a.segments, a.columns});
    Tensor by_grad = in.result(a.by_grad, {a.rows, a.columns});
    return std::tuple_cat(std::tuple(by_grad), segment_weights_backward(in, a, grad));
  }

  MDOPS_IMPLEMENT_FLOATS(SegmentWeightOps, segment_weights, segment_weights_backward,
                         segment_weights_backward_backward)
};

template <class Device, class T>
struct SegmentSoftmaxOps {
  static SoftmaxArgs<T> arguments(Checked<Device>& in, Input x, Input offsets) {
    SoftmaxArgs<T> a{};
    in.take(a.x, "x", x, {kAny, kAny});
    a.rows = x.size(0), a.columns = x.size(1);
    a.segments = take_offsets(in, a.offsets, offsets, a.rows);
    return a;
  }

  static Tensor segment_softmax(Checked<Device>& in, SoftmaxArgs<T>& a) {
    Tensor of_x = in.result(a.of_x, {a.rows, a.columns});
    run_graph(in.op, a);
    return of_x;
  }

  static Tensor segment_softmax_backward(Checked<Device>& in, SoftmaxArgs<T>& a, Input grad) {
    in.give(a.grad, "grad", grad, {a.rows, a.columns});
    return segment_softmax(in, a);
  }

  static Outputs<2> segment_softmax_backward_backward(Checked<Device>& in, SoftmaxArgs<T>& a, Input direction,
                                                      Input grad) {
    in.give(a.direction, "direction", direction, {a.rows, a.columns});
    Tensor of_grad = in.result(a.of_grad, {a.rows, a.columns});
    return {of_grad, segment_softmax_backward(in, a, grad)};
  }

  MDOPS_IMPLEMENT_FLOATS(SegmentSoftmaxOps, segment_softmax, segment_softmax_backward,
                         segment_softmax_backward_backward)
};

}  // namespace mdops
