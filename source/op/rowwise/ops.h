// The ops on rows of numbers. A device also has `norm_runs(op, rows)`, in how many runs it makes sums over
// rows.
#pragma once

#include "common/activation_code.h"
#include "common/bind.h"
#include "common/cutoff.h"
#include "common/given.h"
#include "rowwise/add_norm.h"
#include "rowwise/fade_curve.h"
#include "rowwise/layer_output.h"
#include "rowwise/normalize.h"
#include "rowwise/switch_curve.h"

namespace mdops {

// A tensor for each part of the rows.
using RowParts = std::vector<Tensor>;

struct NormalizeInputs {
  Tensor x, direction = x;  // the second one as far as the pass has it
  RowParts grads;           // none: the forward pass
  bool second;
  ScalarType dtype = x.scalar_type();
  int64_t rows = x.size(0), parts, width = x.size(1) / parts;

  NormalizeInputs(const Op& op, int64_t parts_, const Tensor& x_, const RowParts& grads_ = {},
                  const Tensor* direction_ = nullptr)
      : x(float_input(op, "x", x_, {kAny, kAny})), second(direction_ != nullptr), parts(parts_) {
    if (x.size(1) % parts)
      fail(op, "argument `x` has ", x.size(1), " columns, expected a multiple of ", parts);
    const char* const names[] = {"grad_q", "grad_k", "grad_v"};
    for (size_t k = 0; k < grads_.size(); ++k)
      grads.push_back(input(op, parts == 1 ? "grad" : names[k], grads_[k], dtype, {rows, width}));
    if (second) direction = input(op, "direction", *direction_, dtype, {rows, parts * width});
  }

  Tensor of_x(const Op& op) const { return empty(op, {rows, parts * width}, dtype); }
  RowParts of_y(const Op& op) const {
    RowParts all;
    for (int64_t k = 0; k < parts; ++k) all.push_back(empty(op, {rows, width}, dtype));
    return all;
  }

  template <class T>
  NormalizeArgs<T> args(RowParts* of_y, Tensor* of_x) const {
    NormalizeArgs<T> args{rows, width, parts,        data_of(x), second ? given<T>(direction) : nullptr,
                          {},   {},    data_of(of_x)};
    for (size_t k = 0; k < grads.size(); ++k) args.grad[k] = given<T>(grads[k]);
    for (size_t k = 0; of_y && k < of_y->size(); ++k) args.of_y[k] = (*of_y)[k].mutable_data_ptr<T>();
    return args;
  }
};

template <class Device>
struct NormalizeOps {
  static Tensor unit(const Tensor& x) { return rows("unit", 1, x)[0]; }
  static Tensor unit_backward(const Tensor& grad, const Tensor& x) {
    return rows("unit_backward", 1, x, {grad})[0];
  }
  static Outputs<2> unit_backward_backward(const Tensor& direction, const Tensor& grad, const Tensor& x) {
    const RowParts all = rows("unit_backward_backward", 1, x, {grad}, &direction);
    return {all[0], all[1]};
  }

  static Outputs<3> unit_three(const Tensor& x) {
    const RowParts y = rows("unit_three", 3, x);
    return {y[0], y[1], y[2]};
  }
  static Tensor unit_three_backward(const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v,
                                    const Tensor& x) {
    return rows("unit_three_backward", 3, x, {grad_q, grad_k, grad_v})[0];
  }
  static Outputs<4> unit_three_backward_backward(const Tensor& direction, const Tensor& grad_q,
                                                 const Tensor& grad_k, const Tensor& grad_v,
                                                 const Tensor& x) {
    const RowParts all = rows("unit_three_backward_backward", 3, x, {grad_q, grad_k, grad_v}, &direction);
    return {all[0], all[1], all[2], all[3]};
  }

  MDOPS_IMPLEMENT(NormalizeOps, unit, unit_backward, unit_backward_backward, unit_three, unit_three_backward,
                  unit_three_backward_backward)

 private:
  // The rows y; with gradients by them, the gradient by x; with a direction, too, those by the gradients, and
  // then that by x.
  static RowParts rows(const char* name, int64_t parts, const Tensor& x, const RowParts& grads = {},
                       const Tensor* direction = nullptr) {
    const auto op = Device::make(name, "x", x);
    NormalizeInputs in(op, parts, x, grads, direction);
    in.x = Device::placed(in.x), in.direction = Device::placed(in.direction);
    for (Tensor& grad : in.grads) grad = Device::placed(grad);
    const bool of_x = !grads.empty();
    RowParts of_y = of_x && !direction ? RowParts() : in.of_y(op), by_x;
    if (of_x) by_x.push_back(in.of_x(op));
    dispatch_float(op, in.dtype,
                   [&]<class T>(T) { run_normalize(op, in.args<T>(&of_y, of_x ? &by_x[0] : nullptr)); });
    of_y.insert(of_y.end(), by_x.begin(), by_x.end());
    return of_y;
  }
};

struct AddNormInputs {
  static constexpr const char* kFirst = "x";
  using Given = Listed<const Tensor&, const std::optional<Tensor>&, const Tensor&, double>;

  Tensor x;
  std::optional<Tensor> y;
  Tensor weight = x;
  ScalarType dtype = x.scalar_type();
  int64_t rows = x.size(0), width = x.size(1);
  double eps;

  AddNormInputs(const Op& op, const Tensor& x_, const std::optional<Tensor>& y_, const Tensor& weight_,
                double eps_)
      : x(float_input(op, "x", x_, {kAny, kAny})), eps(eps_) {
    if (y_) y = matrix(op, "y", *y_);
    weight = vector(op, "weight", weight_);
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
    args.x = data_of(x), args.y = data_of(y), args.weight = data_of(weight);
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
  using Call = typename Device::Call;

  static Tensor add_norm(const Tensor& x, const std::optional<Tensor>& y, const Tensor& weight,
                         const Tensor& bias, double eps) {
    const auto op = Device::make("add_norm", "x", x);
    const AddNormInputs in(op, x, y, weight, eps);
    const Tensor b = in.vector(op, "bias", bias);
    Tensor out = in.result(op);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      AddNormArgs<T> args = in.args<T>();
      args.bias = data_of(b), args.out = data_of(out);
      run_add_norm(op, args, NormSums<T>{});
    });
    return out;
  }

  // The gradients by h, weight and bias.
  static Outputs<3> add_norm_backward(const Call& op, const AddNormInputs& in, const Tensor& grad) {
    const Tensor g = in.matrix(op, "grad", grad);
    Tensor out = in.result(op), by_weight = in.of_columns(op), by_bias = in.of_columns(op);
    Tensor partial = empty(op, {norm_runs(op, in.rows), 2, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      AddNormArgs<T> args = in.args<T>();
      args.grad = given<T>(g), args.sums = 2;
      args.out = data_of(out), args.partial = data_of(partial);
      run_add_norm(op, args, NormSums<T>{data_of(by_weight), data_of(by_bias)});
    });
    return {out, by_weight, by_bias};
  }

  // The gradients by grad, h and weight.
  static Outputs<3> add_norm_backward_backward(const Call& op, const AddNormInputs& in,
                                               const Tensor& direction, const Tensor& along_weight,
                                               const Tensor& along_bias, const Tensor& grad) {
    const Tensor g = in.matrix(op, "grad", grad), p = in.matrix(op, "direction", direction);
    const Tensor of_weight = in.vector(op, "along_weight", along_weight);
    const Tensor of_bias = in.vector(op, "along_bias", along_bias);
    Tensor by_grad = in.result(op), out = in.result(op), by_weight = in.of_columns(op);
    Tensor partial = empty(op, {norm_runs(op, in.rows), 1, in.width}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      AddNormArgs<T> args = in.args<T>();
      args.grad = given<T>(g), args.direction = given<T>(p), args.sums = 1;
      args.along_weight = data_of(of_weight), args.along_bias = data_of(of_bias);
      args.by_grad = data_of(by_grad), args.out = data_of(out);
      args.partial = data_of(partial);
      run_add_norm(op, args, NormSums<T>{data_of(by_weight), nullptr});
    });
    return {by_grad, out, by_weight};
  }

  MDOPS_IMPLEMENT(AddNormOps, add_norm, add_norm_backward, add_norm_backward_backward)
};

struct LayerOutputInputs {
  static constexpr const char* kFirst = "z";
  using Given = Listed<const Tensor&, Times<2, int64_t>, double>;

  Tensor z;
  ScalarType dtype = z.scalar_type();
  int64_t rows = z.size(0), columns = z.size(1), inputs;
  Activation activation;
  double threshold;

  LayerOutputInputs(const Op& op, const Tensor& z_, int64_t inputs_, int64_t activation_, double threshold_)
      : z(float_input(op, "z", z_, {kAny, kAny})),
        inputs(inputs_),
        activation(activation_of(op, activation_)),
        threshold(threshold_) {
    if (inputs < 0 || inputs > columns || (inputs && columns % inputs))
      fail(op, "the layer has ", inputs, " inputs to add, expected 0 or a divisor of the ", columns,
           " columns of `z`");
  }

  Tensor wide(const Op& op, const char* name, const Tensor& tensor) const {
    return input(op, name, tensor, dtype, {rows, columns});
  }
  Tensor narrow(const Op& op, const char* name, const Tensor& tensor) const {
    return input(op, name, tensor, dtype, {rows, inputs});
  }
  Tensor wide(const Op& op) const { return empty(op, {rows, columns}, dtype); }
  Tensor narrow(const Op& op) const { return empty(op, {rows, inputs}, dtype); }

  template <class T>
  LayerOutputArgs<T> args() const {
    LayerOutputArgs<T> args{};
    args.rows = rows, args.columns = columns, args.inputs = inputs;
    args.activation = activation, args.threshold = static_cast<T>(threshold);
    args.z = data_of(z);
    return args;
  }
};

template <class Device>
struct LayerOutputOps {
  using Call = typename Device::Call;

  static Tensor layer_output(const Tensor& z, const Tensor& x_, int64_t activation, double threshold) {
    const auto op = Device::make("layer_output", "z", z);
    const LayerOutputInputs in(op, z, x_.dim() == 2 ? x_.size(1) : 0, activation, threshold);
    const Tensor x = in.narrow(op, "x", x_);
    Tensor y = in.wide(op);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.x = data_of(x), args.y = data_of(y);
      run_layer_output(op, args);
    });
    return y;
  }

  // The gradients by z and x.
  static Outputs<2> layer_output_backward(const Call& op, const LayerOutputInputs& in, const Tensor& grad_) {
    const Tensor grad = in.wide(op, "grad", grad_);
    Tensor by_z = in.wide(op), by_x = in.narrow(op);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.grad = given<T>(grad);
      args.by_z = data_of(by_z), args.by_x = data_of(by_x);
      run_layer_output(op, args);
    });
    return {by_z, by_x};
  }

  // The gradients by `grad` and z.
  static Outputs<2> layer_output_backward_backward(const Call& op, const LayerOutputInputs& in,
                                                   const Tensor& along_z, const Tensor& along_x,
                                                   const Tensor& grad_) {
    const Tensor u = in.wide(op, "along_z", along_z), w = in.narrow(op, "along_x", along_x);
    const Tensor grad = in.wide(op, "grad", grad_);
    Tensor by_grad = in.wide(op), by_z = in.wide(op);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.u = data_of(u), args.w = data_of(w), args.grad = given<T>(grad);
      args.y = data_of(by_grad), args.by_z = data_of(by_z);
      run_layer_output(op, args);
    });
    return {by_grad, by_z};
  }

  MDOPS_IMPLEMENT(LayerOutputOps, layer_output, layer_output_backward, layer_output_backward_backward)
};

template <class Device>
Tensor switch_curve(const Tensor& r, double cutoff_smooth, double cutoff, int64_t order) {
  const auto op = Device::make("switch_curve", "r", r);
  const Tensor x = float_input(op, "r", r, {kAny, kAny});
  check_cutoff(op, cutoff, cutoff_smooth, 0);
  if (order < 0 || order > INT32_MAX)
    fail(op, "argument `order` is ", order, ", expected 0 or more, as 32 bits count");
  Tensor out = empty(op, {x.size(0), x.size(1)}, x.scalar_type());
  dispatch_float(op, x.scalar_type(), [&]<class T>(T) {
    run_curve(op, SwitchArgs<T>{x.numel(), static_cast<T>(cutoff_smooth), static_cast<T>(cutoff),
                                order < 6 ? order : 6, data_of(x), data_of(out)});
  });
  return out;
}

template <class Device>
Tensor fade_curve(const Tensor& r, double cutoff, int64_t exponent, int64_t order) {
  const auto op = Device::make("fade_curve", "r", r);
  const Tensor x = float_input(op, "r", r, {kAny, kAny});
  if (!(cutoff > 0)) fail(op, "argument `cutoff` is ", cutoff, ", expected more than 0");
  for (const auto& [name, value, least] :
       {std::tuple("exponent", exponent, int64_t{1}), std::tuple("order", order, int64_t{0})})
    if (value < least || value > kMostOfFade)
      fail(op, "argument `", name, "` is ", value, ", expected ", least, " to ", kMostOfFade);
  Tensor out = empty(op, {x.size(0), x.size(1)}, x.scalar_type());
  dispatch_float(op, x.scalar_type(), [&]<class T>(T) {
    run_curve(op, FadeArgs<T>{x.numel(), static_cast<T>(cutoff), exponent, order, data_of(x), data_of(out)});
  });
  return out;
}

template <class Device>
void implement_rowwise(Library& m) {
  NormalizeOps<Device>::implement(m);
  AddNormOps<Device>::implement(m);
  LayerOutputOps<Device>::implement(m);
  m.impl("switch_curve", TORCH_BOX(&switch_curve<Device>));
  m.impl("fade_curve", TORCH_BOX(&fade_curve<Device>));
}

}  // namespace mdops
