// The ops on norms of atoms' rows. A device has `run_norm`.
#pragma once

#include "common/bind.h"
#include "common/given.h"
#include "degree_norm/degree_norm.h"

namespace mdops {

struct NormInputs {
  Tensor x, shares;
  ScalarType dtype = x.scalar_type();
  int64_t atoms = x.size(0), rows = x.size(1), channels = x.size(2);
  bool centered;
  double eps;

  NormInputs(const Op& op, const Tensor& x_, const Tensor& shares_, double eps_, bool centered_)
      : x(float_input(op, "x", x_, {kAny, kAny, kAny})),
        shares(input(op, "shares", shares_, x.scalar_type(), {x.size(1)})),
        centered(centered_),
        eps(eps_) {
    if (rows < 1 || channels < 1)
      fail(op, "argument `x` has ", rows, " rows of ", channels, " channels, expected 1 or more of both");
    if (!(eps > 0)) fail(op, "argument `eps` is ", eps, ", expected more than 0");
  }

  Tensor factors(const Op& op, const Tensor& given) const {
    return input(op, "factors", given, dtype, {rows, channels});
  }
  Tensor bias(const Op& op, const Tensor& given) const { return input(op, "bias", given, dtype, {channels}); }
  Tensor of_atoms(const Op& op, const char* name, const Tensor& given) const {
    return input(op, name, given, dtype, {atoms, rows, channels});
  }
  Tensor result(const Op& op) const { return empty(op, {atoms, rows, channels}, dtype); }

  template <class T>
  NormArgs<T> args() const {
    NormArgs<T> found{atoms, rows, channels, centered, static_cast<T>(eps)};
    found.x = data_of(x), found.shares = data_of(shares);
    return found;
  }
};

template <class Device>
struct DegreeNormOps {
  static Tensor degree_norm(const Tensor& x, const Tensor& factors_, const Tensor& bias_,
                            const Tensor& shares, double eps, bool centered) {
    const auto op = Device::make("degree_norm", "x", x);
    const NormInputs in(op, x, shares, eps, centered);
    const Tensor factors = in.factors(op, factors_), bias = in.bias(op, bias_);
    Tensor y = in.result(op);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.factors = data_of(factors), args.bias = data_of(bias);
      args.y = data_of(y);
      run_norm(op, args);
    });
    return y;
  }

  static Tensor degree_norm_backward(const Tensor& grad_, const Tensor& x, const Tensor& factors_,
                                     const Tensor& bias_, const Tensor& shares, double eps, bool centered) {
    const auto op = Device::make("degree_norm_backward", "x", x);
    const NormInputs in(op, x, shares, eps, centered);
    const Tensor factors = in.factors(op, factors_), bias = in.bias(op, bias_);
    const Tensor grad = in.of_atoms(op, "grad", grad_);
    Tensor by_x = in.result(op);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.factors = data_of(factors), args.grad = given<T>(grad);
      args.y = data_of(by_x);
      run_norm(op, args);
    });
    return by_x;
  }

  static Tensor degree_norm_terms(const Tensor& grad_, const Tensor& x, const Tensor& shares, double eps,
                                  bool centered) {
    const auto op = Device::make("degree_norm_terms", "x", x);
    const NormInputs in(op, x, shares, eps, centered);
    const Tensor grad = in.of_atoms(op, "grad", grad_);
    Tensor terms = in.result(op);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.grad = given<T>(grad), args.terms = data_of(terms);
      run_norm(op, args);
    });
    return terms;
  }

  static Outputs<3> degree_norm_backward_backward(const Tensor& direction_, const Tensor& grad_,
                                                  const Tensor& x, const Tensor& factors_,
                                                  const Tensor& shares, double eps, bool centered) {
    const auto op = Device::make("degree_norm_backward_backward", "x", x);
    const NormInputs in(op, x, shares, eps, centered);
    const Tensor factors = in.factors(op, factors_), grad = in.of_atoms(op, "grad", grad_);
    const Tensor direction = in.of_atoms(op, "direction", direction_);
    Tensor by_grad = in.result(op), by_x = in.result(op), terms = in.result(op);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      auto args = in.args<T>();
      args.factors = data_of(factors), args.grad = given<T>(grad);
      args.direction = given<T>(direction);
      args.by_grad = data_of(by_grad), args.terms = data_of(terms);
      args.y = data_of(by_x);
      run_norm(op, args);
    });
    return {by_grad, by_x, terms};
  }

  MDOPS_IMPLEMENT(DegreeNormOps, degree_norm, degree_norm_backward, degree_norm_terms,
                  degree_norm_backward_backward)
};

}  // namespace mdops
