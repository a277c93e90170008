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

  static Tensor edge_update(const Call& op, const EdgeUpdateInputs& in, const Tensor& base) {
    return pass(op, in, "base", base, false);
  }

  // By z.
  static Tensor edge_update_backward(const Call& op, const EdgeUpdateInputs& in, const Tensor& grad) {
    return pass(op, in, "grad", grad, true);
  }

  MDOPS_IMPLEMENT(EdgeUpdateOps, edge_update, edge_update_backward)

 private:
  // Of rows (E, W) of the edges.
  static Tensor pass(const Call& op, EdgeUpdateInputs in, const char* name, const Tensor& of_edges,
                     bool back) {
    for (Tensor* tensor : {&in.z, &in.scale, &in.bias}) *tensor = Device::placed(*tensor);
    const Tensor own = Device::placed(input(op, name, of_edges, in.dtype, {in.of.targets, in.width}));
    Tensor out = empty(op, {back ? in.of.rows : in.of.targets, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      (back ? args.grad : args.base) = data_of(own), args.out = data_of(out);
      back ? run_edge_update_gradients(op, args) : run_edge_update(op, args);
    });
    return out;
  }
};

}  // namespace mdops
