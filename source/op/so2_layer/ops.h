// The ops on layers of edges, their arguments checked at entry. What a device does are overloads of `run_so2`
// on the call of an op.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/bind.h"
#include "common/given.h"
#include "common/tensor.h"
#include "edge_rotation/rotate.h"
#include "gemm/matmul.h"
#include "graph/row_index.h"
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

// Of layers one after the other, the first of which have gates, and of the rows of nodes in edges' frames
// that they begin with.
struct So2LayersInputs {
  Tensor turn, x;
  RowIndex of;
  int64_t edges, rows, channels;
  std::vector<So2Weights> layers;

  template <class Device>
  So2LayersInputs(const Op& op, Device device, const Tensor& turn_, const Tensor& x_, const Tensor& index,
                  const std::optional<Tensor>& order, const Tensor& offsets,
                  const std::vector<Tensor>& weights, const std::vector<Tensor>& both,
                  const std::vector<Tensor>& gates, const std::string& matmul)
      : turn(Device::placed(float_input(op, "turn", turn_, {kAny, kAny, kAny}))),
        x(Device::placed(input(op, "x", x_, turn.scalar_type(), {kAny, turn.size(2), kAny}))),
        of(op, index, order, offsets, turn.size(0)),
        edges(turn.size(0)),
        rows(turn.size(1)),
        channels(x.size(2)) {
    check_rotation(op, of, x);
    if (weights.empty() || both.size() != weights.size() || gates.size() > weights.size())
      fail(op, "arguments `weights`, `both` and `gates` have " + std::to_string(weights.size()) + ", " +
                   std::to_string(both.size()) + " and " + std::to_string(gates.size()) +
                   " tensors, expected one of the first two for each layer, and as many gates at most");
    const Tensor none = empty(op, {0, 0}, x.scalar_type());
    for (size_t n = 0; n < weights.size(); ++n)
      layers.emplace_back(op, device, x.scalar_type(), rows, channels, weights[n], both[n],
                          n < gates.size() ? gates[n] : none, matmul);
  }

  ScalarType dtype() const { return x.scalar_type(); }
  Tensor of_edges(const Op& op) const { return empty(op, {edges, rows, channels}, dtype()); }
  template <class T>
  So2Layers<T> args(Tensor& y) const {
    So2Layers<T> found{{{edges, x.size(0), rows, x.size(1), channels},
                        turn.const_data_ptr<T>(),
                        {x.const_data_ptr<T>(), of.index.const_data_ptr<int32_t>(), x.size(0)},
                        nullptr},
                       {},
                       nullptr,
                       y.mutable_data_ptr<T>()};
    for (const So2Weights& layer : layers) found.layers.push_back(layer.args<T>(edges, nullptr, found.y));
    return found;
  }
};

// One after the other, each of them an array of its own.
template <class AnyOp, class T>
void run_one_by_one(const AnyOp& op, So2Layers<T>& given, const So2LayersInputs& in) {
  std::vector<So2Args<T>>& layers = given.layers;
  const size_t last = layers.size() - 1;
  std::vector<Tensor> kept;
  const auto next = [&]() -> T* {
    kept.push_back(in.of_edges(op));
    return kept.back().template mutable_data_ptr<T>();
  };
  RotateArgs<T> turned = given.rows;
  turned.y = next();
  rotate(op, turned);
  for (size_t n = 0; n <= last; ++n) {
    layers[n].x = n == 0 ? turned.y : layers[n - 1].y;
    layers[n].y = given.grad || n < last ? next() : given.y;
    run_so2(op, layers[n]);
  }
  if (!given.grad) return;
  const T* grad = given.grad;
  for (size_t n = last + 1; n-- > 0;) {
    layers[n].grad = grad, layers[n].result = layers[n].y;
    layers[n].y = n > 0 ? next() : given.y;
    run_so2(op, layers[n]);
    grad = layers[n].y;
  }
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

  static Tensor so2_layers(const Tensor& turn, const Tensor& x, const Tensor& index, const Order& order,
                           const Tensor& offsets, Tensors weights, Tensors both, Tensors gates,
                           std::string matmul) {
    const auto op = Device::make("so2_layers", "turn", turn);
    const So2LayersInputs in(op, Device{}, turn, x, index, order, offsets, weights, both, gates, matmul);
    Tensor y = in.of_edges(op);
    dispatch_float(op, in.dtype(), [&](auto zero) {
      auto args = in.args<decltype(zero)>(y);
      run_so2_layers(op, args, in);
    });
    return y;
  }

  static Tensor so2_layers_backward(const Tensor& grad_, const Tensor& turn, const Tensor& x,
                                    const Tensor& index, const Order& order, const Tensor& offsets,
                                    Tensors weights, Tensors both, Tensors gates, std::string matmul) {
    const auto op = Device::make("so2_layers_backward", "turn", turn);
    const So2LayersInputs in(op, Device{}, turn, x, index, order, offsets, weights, both, gates, matmul);
    Tensor by_rows = in.of_edges(op);
    const Tensor grad = placed_like(op, "grad", grad_, by_rows);
    dispatch_float(op, in.dtype(), [&](auto zero) {
      using T = decltype(zero);
      auto args = in.args<T>(by_rows);
      args.grad = given<T>(grad);
      run_so2_layers(op, args, in);
    });
    return by_rows;
  }

  MDOPS_IMPLEMENT(So2Ops, so2_layer, so2_layer_backward, so2_layers, so2_layers_backward)

 private:
  static Tensor like(const Op& op, const Tensor& x) {
    return empty(op, {x.size(0), x.size(1), x.size(2)}, x.scalar_type());
  }
  static Tensor placed_like(const Op& op, const char* name, const Tensor& given, const Tensor& x) {
    return Device::placed(input(op, name, given, x.scalar_type(), {x.size(0), x.size(1), x.size(2)}));
  }
};

}  // namespace mdops
