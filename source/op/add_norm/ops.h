// The ops on LayerNorm of a sum, their arguments checked at entry. A device has `make(name, x)`, a call of an
// op, `runs(op, rows)`, in how many runs sums over rows are made, and `run`, which does it.
#pragma once

#include <tuple>

#include "add_norm/add_norm.h"
#include "common/tensor.h"

namespace mdops {

struct AddNormInputs {
  Tensor x, y, weight;
  ScalarType dtype;
  int64_t rows, width;
  double eps;

  AddNormInputs(const Op& op, const Tensor& x_, const Tensor& y_, const Tensor& weight_, double eps_)
      : x(float_input(op, "x", x_, {kAny, kAny})),
        y(x),
        weight(x),
        dtype(x.scalar_type()),
        rows(x.size(0)),
        width(x.size(1)),
        eps(eps_) {
    y = matrix(op, "y", y_), weight = vector(op, "weight", weight_);
  }

  Tensor matrix(const Op& op, const char* name, const Tensor& tensor) const {
    return input(op, name, tensor, dtype, {rows, width});
  }
  Tensor vector(const Op& op, const char* name, const Tensor& tensor) const {
    return input(op, name, tensor, dtype, {width});
  }
  Tensor result(const Op& op) const { return empty(op, {rows, width}, dtype); }
  Tensor of_columns(const Op& op) const { return empty(op, {width}, dtype); }

  template <class T>
  AddNormArgs<T> args() const {
    AddNormArgs<T> args{};
    args.rows = rows, args.width = width, args.eps = static_cast<T>(eps);
    args.x = x.const_data_ptr<T>(), args.y = y.const_data_ptr<T>(), args.weight = weight.const_data_ptr<T>();
    return args;
  }
};

// Where the sums over rows go.
template <class T>
struct NormSums {
  T *first, *second;
};

template <class Device>
struct AddNormOps {
  static Tensor add_norm(const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& bias,
                         double eps) {
    const auto op = Device::make("add_norm", x);
    const AddNormInputs in(op, x, y, weight, eps);
    const Tensor b = in.vector(op, "bias", bias);
    Tensor out = in.result(op);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      AddNormArgs<T> args = in.args<T>();
      args.bias = b.const_data_ptr<T>(), args.out = out.mutable_data_ptr<T>();
      Device::run(op, args, NormSums<T>{});
    });
    return out;
  }

  // The gradients by h, weight and bias.
  static std::tuple<Tensor, Tensor, Tensor> add_norm_backward(const Tensor& grad, const Tensor& x,
                                                              const Tensor& y, const Tensor& weight,
                                                              double eps) {
    const auto op = Device::make("add_norm_backward", x);
    const AddNormInputs in(op, x, y, weight, eps);
    const Tensor g = in.matrix(op, "grad", grad);
    Tensor out = in.result(op), by_weight = in.of_columns(op), by_bias = in.of_columns(op);
    Tensor partial = empty(op, {Device::runs(op, in.rows), 2, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      AddNormArgs<T> args = in.args<T>();
      args.grad = g.const_data_ptr<T>(), args.sums = 2;
      args.out = out.mutable_data_ptr<T>(), args.partial = partial.mutable_data_ptr<T>();
      Device::run(op, args, NormSums<T>{by_weight.mutable_data_ptr<T>(), by_bias.mutable_data_ptr<T>()});
    });
    return {out, by_weight, by_bias};
  }

  // The gradients by grad, h and weight.
  static std::tuple<Tensor, Tensor, Tensor> add_norm_backward_backward(
      const Tensor& direction, const Tensor& along_weight, const Tensor& along_bias, const Tensor& grad,
      const Tensor& x, const Tensor& y, const Tensor& weight, double eps) {
    const auto op = Device::make("add_norm_backward_backward", x);
    const AddNormInputs in(op, x, y, weight, eps);
    const Tensor g = in.matrix(op, "grad", grad), p = in.matrix(op, "direction", direction);
    const Tensor of_weight = in.vector(op, "along_weight", along_weight);
    const Tensor of_bias = in.vector(op, "along_bias", along_bias);
    Tensor by_grad = in.result(op), out = in.result(op), by_weight = in.of_columns(op);
    Tensor partial = empty(op, {Device::runs(op, in.rows), 1, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      AddNormArgs<T> args = in.args<T>();
      args.grad = g.const_data_ptr<T>(), args.direction = p.const_data_ptr<T>(), args.sums = 1;
      args.along_weight = of_weight.const_data_ptr<T>(), args.along_bias = of_bias.const_data_ptr<T>();
      args.by_grad = by_grad.mutable_data_ptr<T>(), args.out = out.mutable_data_ptr<T>();
      args.partial = partial.mutable_data_ptr<T>();
      Device::run(op, args, NormSums<T>{by_weight.mutable_data_ptr<T>(), nullptr});
    });
    return {by_grad, out, by_weight};
  }
};

}  // namespace mdops
