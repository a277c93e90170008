// The ops on edges after messages, their arguments checked at entry. What a device does are overloads of
// `run_edge_update` and `run_edge_update_gradients` on the call of an op.
#pragma once

#include "common/activation_code.h"
#include "common/bind.h"
#include "edge_update/edge_update.h"
#include "graph/row_index.h"

namespace mdops {

struct EdgeUpdateInputs {
  static constexpr const char* kFirst = "z";
  using Given = Listed<Times<5, const Tensor&>, int64_t, double>;

  Tensor z;
  ScalarType dtype;
  int64_t width;
  Tensor scale, bias;
  RowIndex of;
  Activation activation;
  double threshold;

  EdgeUpdateInputs(const Op& op, const Tensor& z_, const Tensor& scale_, const Tensor& bias_,
                   const Tensor& index, const Tensor& offsets, int64_t activation_, double threshold_)
      : z(float_input(op, "z", z_, {kAny, kAny})),
        dtype(z.scalar_type()),
        width(z.size(1)),
        scale(input(op, "scale", scale_, dtype, {width})),
        bias(input(op, "bias", bias_, dtype, {width})),
        of(op, index, std::nullopt, offsets, z.size(0)),
        activation(activation_of(op, activation_)),
        threshold(threshold_) {}

  template <class T>
  EdgeUpdateArgs<T> args() const {
    EdgeUpdateArgs<T> a{};
    a.z = data_of(z), a.scale = data_of(scale), a.bias = data_of(bias);
    a.index = data_of(of.index), a.offsets = data_of(of.offsets);
    a.rows = of.rows, a.edges = of.targets, a.width = width;
    a.activation = activation, a.threshold = static_cast<T>(threshold);
    return a;
  }
};

template <class Device>
struct EdgeUpdateOps {
  using Call = typename Device::Call;

  static Tensor edge_update(const Call& op, const EdgeUpdateInputs& given, const Tensor& base_) {
    const EdgeUpdateInputs in = placed(given);
    const Tensor base = Device::placed(input(op, "base", base_, in.dtype, {in.of.targets, in.width}));
    Tensor out = empty(op, {in.of.targets, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.base = data_of(base), args.out = data_of(out);
      run_edge_update(op, args);
    });
    return out;
  }

  // By z.
  static Tensor edge_update_backward(const Call& op, const EdgeUpdateInputs& given, const Tensor& grad_) {
    const EdgeUpdateInputs in = placed(given);
    const Tensor grad = Device::placed(input(op, "grad", grad_, in.dtype, {in.of.targets, in.width}));
    Tensor out = empty(op, {in.of.rows, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.grad = data_of(grad), args.out = data_of(out);
      run_edge_update_gradients(op, args);
    });
    return out;
  }

  MDOPS_IMPLEMENT(EdgeUpdateOps, edge_update, edge_update_backward)

 private:
  static EdgeUpdateInputs placed(EdgeUpdateInputs in) {
    in.z = Device::placed(in.z), in.scale = Device::placed(in.scale), in.bias = Device::placed(in.bias);
    return in;
  }
};

}  // namespace mdops
