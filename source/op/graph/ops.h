// The ops on graphs. A device has `run_graph` for each kernel's arguments.
#pragma once

#include <cmath>
#include <limits>

#include "common/bind.h"
#include "common/given.h"
#include "graph/edges.h"
#include "graph/row_index.h"
#include "graph/rows.h"
#include "graph/segment_weights.h"
#include "graph/softmax.h"
#include "neighbor_rows/inputs.h"

namespace mdops {

// A number of things that 32 bits count.
inline int64_t count_of(const Op& op, const char* name, int64_t value) {
  if (value < 0 || value > INT32_MAX)
    fail(op, "argument `", name, "` is ", value, ", expected 0 or more, as 32 bits count");
  return value;
}

struct EdgeListInputs {
  static constexpr const char* kFirst = "displacements";
  using Given = Listed<Times<6, const Tensor&>, Times<2, double>, Times<4, int64_t>>;

  SlotInputs list;
  Tensor neighbors, images, pair_mask;
  double cutoff, angle_cutoff;
  int64_t edge_sel, angle_sel, nodes, capacity;

  EdgeListInputs(const Op& op, const Tensor& displacements, const Tensor& neighbors_, const Tensor& images_,
                 const Tensor& counts, const Tensor& types, const Tensor& pair_mask_, double cutoff_,
                 double angle_cutoff_, int64_t edge_sel_, int64_t angle_sel_, int64_t nodes_,
                 int64_t capacity_)
      : list(op, displacements, counts, types),
        neighbors(input(op, "neighbors", neighbors_, ScalarType::Int, {list.atoms, list.width})),
        images(input(op, "images", images_, ScalarType::Int, {list.atoms, list.width})),
        pair_mask(input(op, "pair_mask", pair_mask_, ScalarType::Bool, {list.ntypes, list.ntypes})),
        cutoff(cutoff_),
        angle_cutoff(angle_cutoff_),
        edge_sel(count_of(op, "edge_sel", edge_sel_)),
        angle_sel(count_of(op, "angle_sel", angle_sel_)),
        nodes(count_of(op, "nodes", nodes_)),
        capacity(count_of(op, "capacity", capacity_)) {
    if (!(cutoff > 0) || !std::isfinite(cutoff) || !(angle_cutoff >= 0) || !(angle_cutoff <= cutoff))
      fail(op, "arguments `cutoff` and `angle_cutoff` are ", cutoff, " and ", angle_cutoff,
           " A, expected a finite cutoff > 0 and one of angles from 0 to it");
    check_range(op, "neighbors", neighbors, -1, nodes);
  }
};

struct EdgeListTensors {
  const Op& op;
  const EdgeListInputs& in;
  Tensor i = of_edges(), j = of_edges(), images = of_edges(), slots = of_edges();
  Tensor offsets = empty(op, {in.list.atoms + 1}, ScalarType::Int);
  Tensor edge_of_slot = empty(op, {in.list.atoms, in.list.width}, ScalarType::Int);
  Tensor angle_neighbors = empty(op, {in.list.atoms}, ScalarType::Int);
  Tensor within = empty(op, {in.list.atoms, 2}, ScalarType::Int), needed = empty(op, {2}, ScalarType::Long);

  Tensor of_edges() const { return empty(op, {in.capacity}, ScalarType::Int); }

  template <class T>
  EdgeListArgs<T> args() {
    const T c = static_cast<T>(in.cutoff), a = static_cast<T>(in.angle_cutoff);
    EdgeListArgs<T> e{};
    e.list = in.list.args<T>(), e.neighbors = data_of(in.neighbors), e.images = data_of(in.images);
    e.pair_mask = data_of(in.pair_mask), e.cutoff2 = c * c, e.angle_cutoff2 = a * a, e.edge_sel = in.edge_sel;
    e.angle_sel = a > T(0) ? in.angle_sel : 0, e.nodes = in.nodes, e.capacity = in.capacity, e.i = data_of(i);
    e.j = data_of(j), e.edge_images = data_of(images), e.slots = data_of(slots), e.offsets = data_of(offsets);
    e.edge_of_slot = data_of(edge_of_slot), e.angle_neighbors = data_of(angle_neighbors);
    e.within = data_of(within), e.needed = data_of(needed);
    return e;
  }
};

template <class Device>
struct GraphOps {
  using Call = typename Device::Call;
  using Edges = Outputs<9>;

  static Edges neighbor_edges(const Call& op, const EdgeListInputs& in) {
    EdgeListTensors out{op, in};
    dispatch_float(op, in.list.dtype, [&]<class T>(T) { run_graph(op, out.args<T>()); });
    return {out.i,      out.j,     out.images, out.slots, out.offsets, out.edge_of_slot, out.angle_neighbors,
            out.within, out.needed};
  }

  static Tensor edge_reverse(const Tensor& i_, const Tensor& j_, const Tensor& images_,
                             const Tensor& offsets_) {
    const auto op = Device::make("edge_reverse", "i", i_);
    const Tensor i = input(op, "i", i_, ScalarType::Int, {kAny});
    const int64_t edges = i.size(0);
    const Tensor j = input(op, "j", j_, ScalarType::Int, {edges});
    const Tensor images = input(op, "images", images_, ScalarType::Int, {edges});
    const Tensor offsets = offsets_input(op, offsets_, edges);
    Tensor reverse = empty(op, {edges}, ScalarType::Int);
    run_graph(op, ReverseArgs{data_of(i), data_of(j), data_of(images), data_of(offsets), edges,
                              offsets.size(0) - 1, data_of(reverse)});
    return reverse;
  }

  static Outputs<2> edge_order(const Tensor& index_, int64_t rows_) {
    const auto op = Device::make("edge_order", "index", index_);
    const Tensor index = input(op, "index", index_, ScalarType::Int, {kAny});
    const int64_t edges = count_of(op, "index", index.size(0)), rows = count_of(op, "rows", rows_);
    check_range(op, "index", index, -1, rows);
    Tensor order = empty(op, {edges}, ScalarType::Int), offsets = empty(op, {rows + 1}, ScalarType::Int);
    run_graph(op, OrderArgs{data_of(index), edges, rows, data_of(order), data_of(offsets)});
    return {order, offsets};
  }

  static Outputs<5> edge_angles(const Tensor& offsets_, const Tensor& counts_, int64_t edges_,
                                int64_t capacity_) {
    const auto op = Device::make("edge_angles", "offsets", offsets_);
    const int64_t edges = count_of(op, "edges", edges_), capacity = count_of(op, "capacity", capacity_);
    const Tensor offsets = offsets_input(op, offsets_, edges);
    const int64_t atoms = offsets.size(0) - 1;
    const Tensor counts = input(op, "counts", counts_, ScalarType::Int, {atoms});
    Tensor first = empty(op, {capacity}, ScalarType::Int), second = empty(op, {capacity}, ScalarType::Int);
    Tensor mirror = empty(op, {capacity}, ScalarType::Int), starts = empty(op, {edges + 1}, ScalarType::Int);
    Tensor needed = empty(op, {2}, ScalarType::Long);
    const EdgeAngleArgs args{data_of(offsets), data_of(counts), atoms,           edges,
                             capacity,         data_of(first),  data_of(second), data_of(mirror),
                             data_of(starts),  data_of(needed)};
    for (int64_t i = 0; op.on_cpu() && i < atoms; ++i)
      if (!args.fits(i))
        fail(op, "argument `counts` has ", args.counts[i], " for atom ", i,
             ", expected 0 to the number of its edges");
    run_graph(op, args);
    return {first, second, mirror, starts, needed};
  }

  static Tensor edge_gather(const Tensor& x_, const Tensor& index, const std::optional<Tensor>& order,
                            const Tensor& offsets, const std::optional<Tensor>& base_, int64_t width) {
    const auto op = Device::make("edge_gather", "x", x_);
    const Tensor x = Device::placed(float_input(op, "x", x_, {kAny, kAny}));
    const RowIndex of(op, index, order, offsets, kAny);
    check_nodes(op, "x", x, of);
    check_width(op, width, 0, x.size(1));
    std::optional<Tensor> base;
    if (base_) base = Device::placed(input(op, "base", *base_, x.scalar_type(), {of.rows, width}));
    return gather(op, x, of.index, nullptr, base, width);
  }

  static Tensor edge_scatter(const Tensor& y_, const Tensor& index, const std::optional<Tensor>& order,
                             const Tensor& offsets, const std::optional<Tensor>& base_,
                             const std::optional<Tensor>& more_, int64_t width) {
    const auto op = Device::make("edge_scatter", "y", y_);
    const Tensor y = Device::placed(float_input(op, "y", y_, {kAny, kAny}));
    check_width(op, width, y.size(1), std::numeric_limits<int32_t>::max());
    const RowIndex of(op, index, order, offsets, y.size(0));
    const auto added = [&](const char* name, const std::optional<Tensor>& given, bool may_be_one) {
      if (!given) return std::optional<Tensor>();
      const int64_t rows = may_be_one && given->dim() == 2 && given->size(0) == 1 ? 1 : of.targets;
      return std::optional(Device::placed(input(op, name, *given, y.scalar_type(), {rows, width})));
    };
    const auto base = added("base", base_, false), more = added("more", more_, true);
    Tensor x = empty(op, {of.targets, width}, y.scalar_type());
    dispatch_float(op, y.scalar_type(), [&]<class T>(T) {
      ScatterArgs<T> args{data_of(y), data_of(of.index), of.order_data(), data_of(of.offsets), of.rows,
                          of.targets, y.size(1),         width,           data_of(x)};
      args.base = data_of(base), args.more = data_of(more);
      args.more_stride = more && more->size(0) == 1 ? 0 : width;
      run_graph(op, args);
    });
    return x;
  }

  static Tensor edge_product(const Tensor& x_, const Tensor& x_index, const std::optional<Tensor>& x_order,
                             const Tensor& x_offsets, const Tensor& y_, const Tensor& y_index,
                             const std::optional<Tensor>& y_order, const Tensor& y_offsets) {
    const auto op = Device::make("edge_product", "x", x_);
    const Tensor x = Device::placed(float_input(op, "x", x_, {kAny, kAny}));
    const Tensor y = Device::placed(input(op, "y", y_, x.scalar_type(), {kAny, x.size(1)}));
    const RowIndex of_x(op, x_index, x_order, x_offsets, kAny, {"x_index", "x_order", "x_offsets"});
    const RowIndex of_y(op, y_index, y_order, y_offsets, of_x.rows, {"y_index", "y_order", "y_offsets"});
    check_nodes(op, "x", x, of_x), check_nodes(op, "y", y, of_y);
    Tensor z = empty(op, {of_x.rows, x.size(1)}, x.scalar_type());
    dispatch_float(op, x.scalar_type(), [&]<class T>(T) {
      run_graph(
          op, ProductArgs<T>{node_rows<T>(x, of_x), node_rows<T>(y, of_y), of_x.rows, x.size(1), data_of(z)});
    });
    return z;
  }

  static Tensor edge_weighted_sum(const Tensor& weight_, const Tensor& x_, const Tensor& x_index,
                                  const std::optional<Tensor>& x_order, const Tensor& x_offsets,
                                  const Tensor& index, const std::optional<Tensor>& order,
                                  const Tensor& offsets) {
    const auto op = Device::make("edge_weighted_sum", "weight", weight_);
    const Tensor weight = Device::placed(float_input(op, "weight", weight_, {kAny, kAny}));
    const int64_t rows = weight.size(0), width = weight.size(1);
    const Tensor x = Device::placed(input(op, "x", x_, weight.scalar_type(), {kAny, width}));
    const RowIndex of_x(op, x_index, x_order, x_offsets, rows, {"x_index", "x_order", "x_offsets"});
    const RowIndex of(op, index, order, offsets, rows);
    check_nodes(op, "x", x, of_x);
    Tensor z = empty(op, {of.targets, width}, weight.scalar_type());
    dispatch_float(op, weight.scalar_type(), [&]<class T>(T) {
      run_graph(op,
                WeightedSumArgs<T>{data_of(weight), node_rows<T>(x, of_x), data_of(of.index), of.order_data(),
                                   data_of(of.offsets), rows, of.targets, width, data_of(z)});
    });
    return z;
  }

  static Tensor edge_permute(const Tensor& x_, const Tensor& index_, const Tensor& inverse_) {
    const auto op = Device::make("edge_permute", "x", x_);
    const Tensor x = Device::placed(float_input(op, "x", x_, {kAny, kAny}));
    const Tensor index = input(op, "index", index_, ScalarType::Int, {kAny});
    const Tensor inverse = input(op, "inverse", inverse_, ScalarType::Int, {x.size(0)});
    check_inverse(op, "index", index, inverse), check_inverse(op, "inverse", inverse, index);
    return gather(op, x, index, &inverse, std::nullopt, x.size(1));
  }

  static Tensor segment_weights(const Tensor& x, const Tensor& weight, const Tensor& nothing,
                                const Tensor& offsets) {
    return weights("segment_weights", nullptr, nullptr, x, weight, nothing, offsets)[0];
  }
  static Outputs<3> segment_weights_backward(const Tensor& grad, const Tensor& x, const Tensor& weight,
                                             const Tensor& nothing, const Tensor& offsets) {
    const auto all = weights("segment_weights_backward", nullptr, &grad, x, weight, nothing, offsets);
    return {all[0], all[1], all[2]};
  }
  static Outputs<4> segment_weights_backward_backward(const Tensor& along_x, const Tensor& along_weight,
                                                      const Tensor& along_nothing, const Tensor& grad,
                                                      const Tensor& x, const Tensor& weight,
                                                      const Tensor& nothing, const Tensor& offsets) {
    const Tensor* const along[] = {&along_x, &along_weight, &along_nothing};
    const auto all = weights("segment_weights_backward_backward", along, &grad, x, weight, nothing, offsets);
    return {all[3], all[0], all[1], all[2]};
  }

  static Tensor segment_softmax(const Tensor& x, const Tensor& offsets) {
    return softmax("segment_softmax", nullptr, nullptr, x, offsets)[0];
  }
  static Tensor segment_softmax_backward(const Tensor& grad, const Tensor& x, const Tensor& offsets) {
    return softmax("segment_softmax_backward", nullptr, &grad, x, offsets)[0];
  }
  static Outputs<2> segment_softmax_backward_backward(const Tensor& direction, const Tensor& grad,
                                                      const Tensor& x, const Tensor& offsets) {
    const auto all = softmax("segment_softmax_backward_backward", &direction, &grad, x, offsets);
    return {all[1], all[0]};
  }

  MDOPS_IMPLEMENT(GraphOps, neighbor_edges, edge_reverse, edge_order, edge_angles, edge_gather, edge_scatter,
                  edge_product, edge_weighted_sum, edge_permute, segment_weights, segment_weights_backward,
                  segment_weights_backward_backward, segment_softmax, segment_softmax_backward,
                  segment_softmax_backward_backward)

 private:
  template <class T>
  static NodeRows<T> node_rows(const Tensor& x, const RowIndex& of) {
    return {data_of(x), data_of(of.index), x.size(0)};
  }

  template <class O>
  static Tensor gather(const O& op, const Tensor& x, const Tensor& index, const Tensor* inverse,
                       const std::optional<Tensor>& base, int64_t width) {
    Tensor y = empty(op, {index.size(0), width}, x.scalar_type());
    dispatch_float(op, x.scalar_type(), [&]<class T>(T) {
      run_graph(op, GatherArgs<T>{data_of(x), data_of(index), data_of(inverse), index.size(0), x.size(0),
                                  width, x.size(1), data_of(y), data_of(base)});
    });
    return y;
  }

  static void check_width(const Op& op, int64_t width, int64_t least, int64_t most) {
    if (width < least || width > most)
      fail(op, "argument `width` is ", width, ", expected ", least, " to ", most);
  }

  static void check_inverse(const Op& op, const char* name, const Tensor& index, const Tensor& inverse) {
    check_range(op, name, index, -1, inverse.size(0));
    if (!op.on_cpu()) return;
    const int32_t *to = index.const_data_ptr<int32_t>(), *back = inverse.const_data_ptr<int32_t>();
    for (int64_t k = 0; k < index.size(0); ++k)
      if (to[k] >= 0 && back[to[k]] != k)
        fail(op, "argument `", name, "` has ", to[k], " at ", k, ", from where the other leads to ",
             back[to[k]]);
  }

  // y, or the gradients by x, weight (of each column) and nothing (of each segment), and by the gradient by
  // y.
  static std::vector<Tensor> weights(const char* name, const Tensor* const* along, const Tensor* grad_,
                                     const Tensor& x_, const Tensor& weight_, const Tensor& nothing_,
                                     const Tensor& offsets_) {
    const auto op = Device::make(name, "x", x_);
    const Tensor x = float_input(op, "x", x_, {kAny, kAny});
    const ScalarType dtype = x.scalar_type();
    const int64_t rows = x.size(0), columns = x.size(1);
    const Tensor weight = input(op, "weight", weight_, dtype, {rows, 1});
    const Tensor nothing = input(op, "nothing", nothing_, dtype, {columns});
    const Tensor offsets = offsets_input(op, offsets_, rows);
    const int64_t segments = offsets.size(0) - 1;
    const Tensor grad = grad_ ? input(op, "grad", *grad_, dtype, {rows, columns}) : x;
    const Tensor along_x = along ? input(op, "along_x", *along[0], dtype, {rows, columns}) : x;
    const Tensor along_weight = along ? input(op, "along_weight", *along[1], dtype, {rows, columns}) : x;
    const Tensor along_nothing =
        along ? input(op, "along_nothing", *along[2], dtype, {segments, columns}) : x;
    std::vector<Tensor> out{empty(op, {rows, columns}, dtype)};
    if (grad_)
      out.push_back(empty(op, {rows, columns}, dtype)), out.push_back(empty(op, {segments, columns}, dtype));
    if (along) out.push_back(empty(op, {rows, columns}, dtype));
    dispatch_float(op, dtype, [&]<class T>(T) {
      SegmentWeightArgs<T> args{rows, columns, segments, offsets.const_data_ptr<int32_t>()};
      args.x = x.const_data_ptr<T>(), args.weight = weight.const_data_ptr<T>();
      args.nothing = nothing.const_data_ptr<T>(), args.y = out[0].mutable_data_ptr<T>();
      if (grad_) {
        args.grad = given<T>(grad);
        args.by_weight = out[1].mutable_data_ptr<T>(), args.by_nothing = out[2].mutable_data_ptr<T>();
      }
      if (along) {
        args.along_x = given<T>(along_x), args.along_weight = along_weight.const_data_ptr<T>();
        args.along_nothing = along_nothing.const_data_ptr<T>(), args.by_grad = out[3].mutable_data_ptr<T>();
      }
      run_graph(op, args);
    });
    return out;
  }

  // The forward pass has no gradient, the backward pass no direction.
  static std::vector<Tensor> softmax(const char* name, const Tensor* direction_, const Tensor* grad_,
                                     const Tensor& x_, const Tensor& offsets_) {
    const auto op = Device::make(name, "x", x_);
    const Tensor x = float_input(op, "x", x_, {kAny, kAny});
    const ScalarType dtype = x.scalar_type();
    const int64_t rows = x.size(0), columns = x.size(1);
    const Tensor offsets = offsets_input(op, offsets_, rows);
    const Tensor grad = grad_ ? input(op, "grad", *grad_, dtype, {rows, columns}) : x;
    const Tensor direction = direction_ ? input(op, "direction", *direction_, dtype, {rows, columns}) : x;
    std::vector<Tensor> out{empty(op, {rows, columns}, dtype)};
    if (direction_) out.push_back(empty(op, {rows, columns}, dtype));
    dispatch_float(op, dtype, [&]<class T>(T) {
      run_graph(
          op, SoftmaxArgs<T>{data_of(x), grad_ ? given<T>(grad) : nullptr,
                             direction_ ? given<T>(direction) : nullptr, data_of(offsets), rows, columns,
                             offsets.size(0) - 1, data_of(direction_ ? &out[1] : nullptr), data_of(out[0])});
    });
    return out;
  }
};

}  // namespace mdops
