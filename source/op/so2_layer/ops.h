// The ops on layers of edges, their arguments checked at entry. What a device does are overloads of `run_so2`
// on the call of an op.
#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "common/bind.h"
#include "common/given.h"
#include "common/tensor.h"
#include "edge_frames/frames.h"
#include "edge_rotation/rotate.h"
#include "gemm/matmul.h"
#include "graph/row_index.h"
#include "order_mix/mix.h"
#include "so2_layer/so2_layer.h"

namespace mdops {

// The weights of a layer of rows.
struct So2Weights {
  int64_t channels, degrees;
  Tensor weight, both, gate;
  int parts;

  template <class Device>
  So2Weights(const Op& op, Device, ScalarType dtype, int64_t rows, int64_t channels_, const Tensor& weight_,
             const Tensor& both_, const Tensor& gate_, const std::string& matmul_)
      : channels(channels_),
        degrees((rows - 1) / 3),
        weight(Device::placed(
            input(op, "weight", weight_, dtype, {(degrees + 1) * channels, (degrees + 1) * channels}))),
        both(Device::placed(input(op, "both", both_, dtype, {degrees * channels, 2 * degrees * channels}))),
        gate(Device::placed(input(op, "gate", gate_, dtype,
                                  {gate_.numel() ? channels : 0, gate_.numel() ? degrees * channels : 0}))) {
    const Matmul matmul = matmul_of(op, matmul_);
    parts = matmul == Matmul::tf32 || matmul == Matmul::bf16 ? 1 : 2;
    if (rows < 1 || rows != 3 * degrees + 1 || channels < 1)
      fail(op, "argument `x` has " + std::to_string(rows) + " rows of " + std::to_string(channels) +
                   " channels, expected 3 L + 1 rows and 1 channel or more");
    if (op.on_cpu()) refuse_tf32(op, matmul);
  }

  template <class T>
  So2Args<T> args(int64_t edges, const T* x, T* y) const {
    const T* const gated = gate.numel() ? gate.const_data_ptr<T>() : nullptr;
    return {edges,   degrees, channels, x,    weight.const_data_ptr<T>(), both.const_data_ptr<T>(), gated,
            nullptr, nullptr, y,        parts};
  }
};

struct So2Inputs {
  Tensor x;
  So2Weights weights;

  template <class Device>
  So2Inputs(const Op& op, Device device, const Tensor& x_, const Tensor& weight, const Tensor& both,
            const Tensor& gate, const std::string& matmul)
      : x(Device::placed(float_input(op, "x", x_, {kAny, kAny, kAny}))),
        weights(op, device, x.scalar_type(), x.size(1), x.size(2), weight, both, gate, matmul) {}

  template <class T>
  So2Args<T> args(Tensor& y) const {
    return weights.args<T>(x.size(0), x.const_data_ptr<T>(), y.mutable_data_ptr<T>());
  }
};

// Of messages: vectors and mixtures of edges, rows of neighbours, weights of edges, and layers, the first of
// which have gates.
struct So2MessagesInputs {
  Tensor vectors, mixture, x, weight;
  RowIndex of_neighbor, of_center;
  int64_t degree;
  RotationShape shape;
  std::vector<So2Weights> layers;

  template <class Device>
  So2MessagesInputs(const Op& op, Device device, const Tensor& vectors_, const Tensor& mixture_,
                    const Tensor& x_, const Tensor& weight_, const Tensor& index,
                    const std::optional<Tensor>& order, const Tensor& offsets, const Tensor& center_index,
                    const std::optional<Tensor>& center_order, const Tensor& center_offsets,
                    const std::vector<Tensor>& weights, const std::vector<Tensor>& both,
                    const std::vector<Tensor>& gates, const std::string& matmul)
      : vectors(float_input(op, "vectors", vectors_, {kAny, 3})),
        mixture(input(op, "mixture", mixture_, vectors.scalar_type(), {vectors.size(0), kAny})),
        x(Device::placed(input(op, "x", x_, vectors.scalar_type(), {kAny, kAny, kAny}))),
        weight(input(op, "weight", weight_, vectors.scalar_type(), {vectors.size(0), 1})),
        of_neighbor(op, index, order, offsets, vectors.size(0)),
        of_center(op, center_index, center_order, center_offsets, vectors.size(0),
                  {"center_index", "center_order", "center_offsets"}),
        degree(degree_of(op, x)),
        shape{vectors.size(0), x.size(0), 3 * degree + 1, x.size(1), x.size(2)} {
    check_rotation(op, of_neighbor, x);
    if (weights.empty() || both.size() != weights.size() || gates.size() > weights.size())
      fail(op, "arguments `weights`, `both` and `gates` have " + std::to_string(weights.size()) + ", " +
                   std::to_string(both.size()) + " and " + std::to_string(gates.size()) +
                   " tensors, expected one of the first two for each layer, and as many gates at most");
    const Tensor none = empty(op, {0, 0}, dtype());
    for (size_t n = 0; n < weights.size(); ++n)
      layers.emplace_back(op, device, dtype(), shape.rows, shape.channels, weights[n], both[n],
                          n < gates.size() ? gates[n] : none, matmul);
    if (mixture.size(1) != orders().numbers())
      fail(op, "argument `mixture` has " + std::to_string(mixture.size(1)) +
                   " numbers of an edge, expected " + std::to_string(orders().numbers()));
  }

  ScalarType dtype() const { return x.scalar_type(); }
  OrderShape orders() const { return {shape.edges, degree, degree > 0, shape.columns}; }
  FrameShape frames() const { return {shape.edges, degree > 0}; }
  Tensor of_edges(const Op& op, int64_t numbers) const {
    return empty(op, {shape.edges, shape.rows, numbers}, dtype());
  }
  Tensor of_atoms(const Op& op) const {
    return empty(op, {of_center.targets, shape.columns, shape.channels}, dtype());
  }
  template <class T>
  So2Messages<T> args() const {
    const auto edges = [](const RowIndex& of) {
      return EdgesOfNodes{of.index.const_data_ptr<int32_t>(), of.order_data(),
                          of.offsets.const_data_ptr<int32_t>(), of.targets};
    };
    So2Messages<T> found{shape,
                         vectors.const_data_ptr<T>(),
                         mixture.const_data_ptr<T>(),
                         x.const_data_ptr<T>(),
                         weight.const_data_ptr<T>(),
                         edges(of_neighbor),
                         edges(of_center)};
    for (const So2Weights& layer : layers)
      found.layers.push_back(layer.args<T>(shape.edges, nullptr, nullptr));
    return found;
  }

 private:
  static int64_t degree_of(const Op& op, const Tensor& x) {
    int64_t degree = 0;
    while ((degree + 1) * (degree + 1) < x.size(1)) ++degree;
    if ((degree + 1) * (degree + 1) != x.size(1) || degree > kMostDegree)
      fail(op, "argument `x` has " + std::to_string(x.size(1)) + " columns, expected (L + 1)^2 of L up to " +
                   std::to_string(kMostDegree));
    return degree;
  }
};

// One after the other, each of them an array of its own.
template <class AnyOp, class T>
void run_one_by_one(const AnyOp& op, So2Messages<T>& given, const So2MessagesInputs& in) {
  std::vector<So2Args<T>>& layers = given.layers;
  const size_t last = layers.size() - 1;
  std::vector<Tensor> kept;
  const auto next = [&](int64_t numbers) -> T* {
    kept.push_back(in.of_edges(op, numbers));
    return kept.back().template mutable_data_ptr<T>();
  };
  const RotationShape& shape = given.shape;
  const EdgesOfNodes &neighbors = given.of_neighbor, &centers = given.of_center;
  T *const turn = next(shape.columns), *const mixed = next(shape.columns),
           *const first = next(shape.channels);
  Tensor harmonics = empty(op, {shape.edges, shape.columns}, in.dtype());  // which nothing depends on
  make_frames(op, FrameArgs<T>{in.frames(), given.vectors, harmonics.template mutable_data_ptr<T>(), turn},
              in.degree);
  mix_orders(op, OrderMixArgs<T>{in.orders(), false, given.mixture, turn, mixed});
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
  mix_orders(op, OrderOuterArgs<T>{in.orders(), turn, by_mixed, given.by_mixture});
  mix_orders(op, OrderMixArgs<T>{in.orders(), true, given.mixture, by_mixed, by_turn, by_turn});
  harmonics = zeros(op, {shape.edges, shape.columns}, in.dtype());
  make_frames(op,
              FrameBackwardArgs<T>{in.frames(), given.vectors, harmonics.template const_data_ptr<T>(),
                                   by_turn, given.by_vectors},
              in.degree);
}

template <class Device>
struct So2Ops {
  static Tensor so2_layer(const Tensor& x, const Tensor& weight, const Tensor& both, const Tensor& gate,
                          std::string matmul) {
    const auto op = Device::make("so2_layer", "x", x);
    const So2Inputs in(op, Device{}, x, weight, both, gate, matmul);
    Tensor y = like(op, in.x);
    dispatch_float(op, in.x.scalar_type(), [&](auto zero) { run_so2(op, in.args<decltype(zero)>(y)); });
    return y;
  }

  static Tensor so2_layer_backward(const Tensor& grad_, const Tensor& x, const Tensor& weight,
                                   const Tensor& both, const Tensor& gate, std::string matmul,
                                   const Tensor& result_) {
    const auto op = Device::make("so2_layer_backward", "x", x);
    const So2Inputs in(op, Device{}, x, weight, both, gate, matmul);
    const Tensor grad = placed_like(op, "grad", grad_, in.x),
                 result = placed_like(op, "result", result_, in.x);
    Tensor by_x = like(op, in.x);
    dispatch_float(op, in.x.scalar_type(), [&](auto zero) {
      using T = decltype(zero);
      auto args = in.args<T>(by_x);
      args.grad = given<T>(grad), args.result = result.const_data_ptr<T>();
      run_so2(op, args);
    });
    return by_x;
  }

  using Tensors = std::vector<Tensor>;
  using Order = std::optional<Tensor>;

  static std::tuple<Tensor, Tensor> so2_messages(const Tensor& vectors, const Tensor& mixture,
                                                 const Tensor& x, const Tensor& weight, const Tensor& index,
                                                 const Order& order, const Tensor& offsets,
                                                 const Tensor& center_index, const Order& center_order,
                                                 const Tensor& center_offsets, Tensors weights, Tensors both,
                                                 Tensors gates, std::string matmul) {
    const auto op = Device::make("so2_messages", "vectors", vectors);
    const So2MessagesInputs in(op, Device{}, vectors, mixture, x, weight, index, order, offsets, center_index,
                               center_order, center_offsets, weights, both, gates, matmul);
    Tensor y = in.of_edges(op, in.shape.channels), sums = in.of_atoms(op);
    dispatch_float(op, in.dtype(), [&](auto zero) {
      using T = decltype(zero);
      auto args = in.args<T>();
      args.y = y.mutable_data_ptr<T>(), args.sums = sums.mutable_data_ptr<T>();
      run_so2_messages(op, args, in);
    });
    return {sums, y};
  }

  static std::tuple<Tensor, Tensor, Tensor, Tensor> so2_messages_backward(
      const Tensor& grad_, const Tensor& y_, const Tensor& vectors, const Tensor& mixture, const Tensor& x,
      const Tensor& weight, const Tensor& index, const Order& order, const Tensor& offsets,
      const Tensor& center_index, const Order& center_order, const Tensor& center_offsets, Tensors weights,
      Tensors both, Tensors gates, std::string matmul) {
    const auto op = Device::make("so2_messages_backward", "vectors", vectors);
    const So2MessagesInputs in(op, Device{}, vectors, mixture, x, weight, index, order, offsets, center_index,
                               center_order, center_offsets, weights, both, gates, matmul);
    const RotationShape& shape = in.shape;
    Tensor y = Device::placed(input(op, "y", y_, in.dtype(), {shape.edges, shape.rows, shape.channels}));
    const Tensor grad = Device::placed(
        input(op, "grad", grad_, in.dtype(), {in.of_center.targets, shape.columns, shape.channels}));
    Tensor by_vectors = empty(op, {shape.edges, 3}, in.dtype()), by_x = like(op, in.x);
    Tensor by_mixture = empty(op, {shape.edges, in.mixture.size(1)}, in.dtype());
    Tensor by_weight = empty(op, {shape.edges, 1}, in.dtype());
    dispatch_float(op, in.dtype(), [&](auto zero) {
      using T = decltype(zero);
      auto args = in.args<T>();
      args.y = const_cast<T*>(y.const_data_ptr<T>()), args.grad = given<T>(grad);
      args.by_vectors = by_vectors.mutable_data_ptr<T>(), args.by_mixture = by_mixture.mutable_data_ptr<T>();
      args.by_x = by_x.mutable_data_ptr<T>(), args.by_weight = by_weight.mutable_data_ptr<T>();
      run_so2_messages(op, args, in);
    });
    return {by_vectors, by_mixture, by_x, by_weight};
  }

  MDOPS_IMPLEMENT(So2Ops, so2_layer, so2_layer_backward, so2_messages, so2_messages_backward)

 private:
  static Tensor like(const Op& op, const Tensor& x) {
    return empty(op, {x.size(0), x.size(1), x.size(2)}, x.scalar_type());
  }
  static Tensor placed_like(const Op& op, const char* name, const Tensor& given, const Tensor& x) {
    return Device::placed(input(op, name, given, x.scalar_type(), {x.size(0), x.size(1), x.size(2)}));
  }
};

}  // namespace mdops
