// The ops on norms of atoms' rows, their arguments checked at entry. What a device does are overloads of
// `run_norm` on the call of an op.
#pragma once

#include <string>

#include "common/tensor.h"
#include "degree_norm/degree_norm.h"

namespace mdops {

template <class Device>
struct DegreeNormOps {
  static Tensor degree_norm(const Tensor& x, const Tensor& factors, const Tensor& bias, const Tensor& shares,
                            double eps, bool centered) {
    return run(Device::make("degree_norm", "x", x), x, factors, bias, shares, eps, centered, nullptr);
  }

  static Tensor degree_norm_backward(const Tensor& grad, const Tensor& x, const Tensor& factors,
                                     const Tensor& bias, const Tensor& shares, double eps, bool centered) {
    return run(Device::make("degree_norm_backward", "x", x), x, factors, bias, shares, eps, centered, &grad);
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("degree_norm", TORCH_BOX(&DegreeNormOps::degree_norm));
    m.impl("degree_norm_backward", TORCH_BOX(&DegreeNormOps::degree_norm_backward));
  }

 private:
  template <class Call>
  static Tensor run(const Call& op, const Tensor& x_, const Tensor& factors_, const Tensor& bias_,
                    const Tensor& shares_, double eps, bool centered, const Tensor* grad_) {
    const Tensor x = float_input(op, "x", x_, {kAny, kAny, kAny});
    const ScalarType dtype = x.scalar_type();
    const int64_t rows = x.size(1), channels = x.size(2);
    const Tensor factors = input(op, "factors", factors_, dtype, {rows, channels});
    const Tensor bias = input(op, "bias", bias_, dtype, {channels});
    const Tensor shares = input(op, "shares", shares_, dtype, {rows});
    if (rows < 1 || channels < 1)
      fail(op, "argument `x` has " + std::to_string(rows) + " rows of " + std::to_string(channels) +
                   " channels, expected 1 or more of both");
    if (!(eps > 0)) fail(op, "argument `eps` is " + std::to_string(eps) + ", expected more than 0");
    const Tensor grad = grad_ ? input(op, "grad", *grad_, dtype, {x.size(0), rows, channels}) : x;
    Tensor y = empty(op, {x.size(0), rows, channels}, dtype);
    dispatch_float(op, dtype, [&](auto zero) {
      using T = decltype(zero);
      run_norm(op,
               NormArgs<T>{x.size(0), rows, channels, centered, static_cast<T>(eps), x.const_data_ptr<T>(),
                           factors.const_data_ptr<T>(), bias.const_data_ptr<T>(), shares.const_data_ptr<T>(),
                           grad_ ? grad.const_data_ptr<T>() : nullptr, y.mutable_data_ptr<T>()});
    });
    return y;
  }
};

}  // namespace mdops
