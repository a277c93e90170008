// The ops on rows of numbers. A device also has `norm_runs(op, rows)`, in how many runs it makes sums over
// rows.
#pragma once

#include "common/activation_code.h"
#include "common/bind.h"
#include "common/cutoff.h"
#include "rowwise/add_norm.h"
#include "rowwise/fade_curve.h"
#include "rowwise/layer_output.h"
#include "rowwise/normalize.h"
#include "rowwise/switch_curve.h"

namespace mdops {

template <class Device, class T>
struct NormalizeOps {
  static Tensor unit(Checked<Device>& in, Input x) { return rows(in, 1, x)[0]; }
  static Tensor unit_backward(Checked<Device>& in, Input grad, Input x) { return rows(in, 1, x, {&grad})[0]; }
  static Outputs<2> unit_backward_backward(Checked<Device>& in, Input direction, Input grad, Input x) {
    const auto all = rows(in, 1, x, {&grad}, &direction);
    return {all[0], all[1]};
  }

  static Outputs<3> unit_three(Checked<Device>& in, Input x) {
    const auto y = rows(in, 3, x);
    return {y[0], y[1], y[2]};
  }
  static Tensor unit_three_backward(Checked<Device>& in, Input grad_q, Input grad_k, Input grad_v, Input x) {
    return rows(in, 3, x, {&grad_q, &grad_k, &grad_v})[0];
  }
  static Outputs<4> unit_three_backward_backward(Checked<Device>& in, Input direction, Input grad_q,
                                                 Input grad_k, Input grad_v, Input x) {
    const auto all = rows(in, 3, x, {&grad_q, &grad_k, &grad_v}, &direction);
    return {all[0], all[1], all[2], all[3]};
  }

  MDOPS_IMPLEMENT_FLOATS(NormalizeOps, unit, unit_backward, unit_backward_backward, unit_three,
                         unit_three_backward, unit_three_backward_backward)

 private:
  // The rows y, a tensor for each part; with gradients by them, the gradient by x; with a direction, too,
  // those by the gradients, and then that by x.
  static Tensors rows(Checked<Device>& in, int64_t parts, Input x,
                      const std::vector<const Tensor*>& grads = {}, const Tensor* direction = nullptr) {
    NormalizeArgs<T> a{};
    in.place(a.x, "x", x, {kAny, kAny});
    if (x.size(1) % parts)
      fail(in.op, "argument `x` has ", x.size(1), " columns, expected a multiple of ", parts);
    a.rows = x.size(0), a.width = x.size(1) / parts, a.parts = parts;
    const char* const names[] = {"grad_q", "grad_k", "grad_v"};
    for (size_t k = 0; k < grads.size(); ++k)
      in.give(a.grad[k], parts == 1 ? "grad" : names[k], *grads[k], {a.rows, a.width});
    if (direction) in.give(a.direction, "direction", *direction, {a.rows, parts * a.width});
    Tensors results;
    for (int64_t k = 0; (grads.empty() || direction) && k < parts; ++k)
      results.push_back(in.result(a.of_y[k], {a.rows, a.width}));
    if (!grads.empty()) results.push_back(in.result(a.of_x, {a.rows, parts * a.width}));
    run_normalize(in.op, a);
    return results;
  }
};

// The outputs of the sums over rows.
template <class T>
struct NormSums {
  T *first, *second;
};

template <class Device, class T>
struct AddNormOps {
  static AddNormArgs<T> arguments(Checked<Device>& in, Input x, const Optional& y, Input weight, double eps) {
    AddNormArgs<T> a{};
    in.take(a.x, "x", x, {kAny, kAny});
    a.rows = x.size(0), a.width = x.size(1), a.eps = static_cast<T>(eps);
    in.take(a.y, "y", y, {a.rows, a.width});
    in.take(a.weight, "weight", weight, {a.width});
    return a;
  }

  static Tensor add_norm(Checked<Device>& in, Input x, const Optional& y, Input weight, Input bias,
                         double eps) {
    auto a = arguments(in, x, y, weight, eps);
    in.take(a.bias, "bias", bias, {a.width});
    Tensor out = in.result(a.out, {a.rows, a.width});
    run_add_norm(in.op, a, NormSums<T>{});
    return out;
  }

  // The gradients by h, weight and bias.
  static Outputs<3> add_norm_backward(Checked<Device>& in, AddNormArgs<T>& a, Input grad) {
    in.give(a.grad, "grad", grad, {a.rows, a.width});
    a.sums = 2;
    NormSums<T> sums{};
    Tensor by_weight = in.result(sums.first, {a.width}), by_bias = in.result(sums.second, {a.width});
    return {with_sums(in, a, sums), by_weight, by_bias};
  }

  // The gradients by grad, h and weight.
  static Outputs<3> add_norm_backward_backward(Checked<Device>& in, AddNormArgs<T>& a, Input direction,
                                               Input along_weight, Input along_bias, Input grad) {
    in.give(a.grad, "grad", grad, {a.rows, a.width});
    in.give(a.direction, "direction", direction, {a.rows, a.width});
    in.take(a.along_weight, "along_weight", along_weight, {a.width});
    in.take(a.along_bias, "along_bias", along_bias, {a.width});
    a.sums = 1;
    NormSums<T> sums{};
    Tensor by_grad = in.result(a.by_grad, {a.rows, a.width}), by_weight = in.result(sums.first, {a.width});
    return {by_grad, with_sums(in, a, sums), by_weight};
  }

  MDOPS_IMPLEMENT_FLOATS(AddNormOps, add_norm, add_norm_backward, add_norm_backward_backward)

 private:
  static Tensor with_sums(Checked<Device>& in, AddNormArgs<T>& a, const NormSums<T>& sums) {
    Tensor out = in.result(a.out, {a.rows, a.width});
    const Tensor partial = in.result(a.partial, {norm_runs(in.op, a.rows), a.sums, a.width});
    run_add_norm(in.op, a, sums);
    return out;
  }
};

template <class Device, class T>
struct LayerOutputOps {
  static LayerOutputArgs<T> arguments(Checked<Device>& in, Input z, int64_t inputs, int64_t activation,
                                      double threshold) {
    LayerOutputArgs<T> a{};
    in.take(a.z, "z", z, {kAny, kAny});
    a.rows = z.size(0), a.columns = z.size(1), a.inputs = inputs;
    a.activation = activation_of(in.op, activation), a.threshold = static_cast<T>(threshold);
    if (inputs < 0 || inputs > a.columns || (inputs && a.columns % inputs))
      fail(in.op, "the layer has ", inputs, " inputs to add, expected 0 or a divisor of the ", a.columns,
           " columns of `z`");
    return a;
  }

  static Tensor layer_output(Checked<Device>& in, Input z, Input x, int64_t activation, double threshold) {
    auto a = arguments(in, z, x.dim() == 2 ? x.size(1) : 0, activation, threshold);
    in.take(a.x, "x", x, {a.rows, a.inputs});
    Tensor y = in.result(a.y, {a.rows, a.columns});
    run_layer_output(in.op, a);
    return y;
  }

  // The gradients by z and x.
  static Outputs<2> layer_output_backward(Checked<Device>& in, LayerOutputArgs<T>& a, Input grad) {
    in.give(a.grad, "grad", grad, {a.rows, a.columns});
    Tensor by_z = in.result(a.by_z, {a.rows, a.columns}), by_x = in.result(a.by_x, {a.rows, a.inputs});
    run_layer_output(in.op, a);
    return {by_z, by_x};
  }

  // The gradients by `grad` and z.
  static Outputs<2> layer_output_backward_backward(Checked<Device>& in, LayerOutputArgs<T>& a, Input along_z,
                                                   Input along_x, Input grad) {
    in.take(a.u, "along_z", along_z, {a.rows, a.columns});
    in.take(a.w, "along_x", along_x, {a.rows, a.inputs});
    in.give(a.grad, "grad", grad, {a.rows, a.columns});
    Tensor by_grad = in.result(a.y, {a.rows, a.columns}), by_z = in.result(a.by_z, {a.rows, a.columns});
    run_layer_output(in.op, a);
    return {by_grad, by_z};
  }

  MDOPS_IMPLEMENT_FLOATS(LayerOutputOps, layer_output, layer_output_backward, layer_output_backward_backward)
};

template <class Device, class T>
struct CurveOps {
  static Tensor switch_curve(Checked<Device>& in, Input r, double cutoff_smooth, double cutoff,
                             int64_t order) {
    check_cutoff(in.op, cutoff, cutoff_smooth, 0);
    if (order < 0 || order > INT32_MAX)
      fail(in.op, "argument `order` is ", order, ", expected 0 or more, as 32 bits count");
    return curve(
        in, r,
        SwitchArgs<T>{0, static_cast<T>(cutoff_smooth), static_cast<T>(cutoff), order < 6 ? order : 6});
  }

  static Tensor fade_curve(Checked<Device>& in, Input r, double cutoff, int64_t exponent, int64_t order) {
    if (!(cutoff > 0)) fail(in.op, "argument `cutoff` is ", cutoff, ", expected more than 0");
    for (const auto& [name, value, least] :
         {std::tuple("exponent", exponent, int64_t{1}), std::tuple("order", order, int64_t{0})})
      if (value < least || value > kMostOfFade)
        fail(in.op, "argument `", name, "` is ", value, ", expected ", least, " to ", kMostOfFade);
    return curve(in, r, FadeArgs<T>{0, static_cast<T>(cutoff), exponent, order});
  }

  MDOPS_IMPLEMENT_FLOATS(CurveOps, switch_curve, fade_curve)

 private:
  static Tensor curve(Checked<Device>& in, Input r, auto a) {
    in.take(a.r, "r", r, {kAny, kAny});
    a.count = r.numel();
    Tensor out = in.result(a.out, {r.size(0), r.size(1)});
    run_curve(in.op, a);
    return out;
  }
};

}  // namespace mdops
