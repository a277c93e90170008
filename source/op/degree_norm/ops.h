// The ops on norms of atoms' rows. A device has `run_norm`.
#pragma once

#include "common/bind.h"
#include "degree_norm/degree_norm.h"

namespace mdops {

template <class Device, class T>
struct DegreeNormOps {
  static Tensor degree_norm(Checked<Device>& in, Input x, Input factors, Input bias, Input shares, double eps,
                            bool centered) {
    auto a = norm(in, x, shares, eps, centered);
    in.take(a.factors, "factors", factors, {a.rows, a.channels});
    in.take(a.bias, "bias", bias, {a.channels});
    Tensor y = of_atoms(in, a, a.y);
    run_norm(in.op, a);
    return y;
  }

  static Tensor degree_norm_backward(Checked<Device>& in, Input grad, Input x, Input factors, Input bias,
                                     Input shares, double eps, bool centered) {
    auto a = norm(in, x, shares, eps, centered);
    const T* none;  // added terms have no part in gradients
    in.take(none, "bias", bias, {a.channels});
    in.take(a.factors, "factors", factors, {a.rows, a.channels});
    in.give(a.grad, "grad", grad, {a.atoms, a.rows, a.channels});
    Tensor by_x = of_atoms(in, a, a.y);
    run_norm(in.op, a);
    return by_x;
  }

  static Tensor degree_norm_terms(Checked<Device>& in, Input grad, Input x, Input shares, double eps,
                                  bool centered) {
    auto a = norm(in, x, shares, eps, centered);
    in.give(a.grad, "grad", grad, {a.atoms, a.rows, a.channels});
    Tensor terms = of_atoms(in, a, a.terms);
    run_norm(in.op, a);
    return terms;
  }

  static Outputs<3> degree_norm_backward_backward(Checked<Device>& in, Input direction, Input grad, Input x,
                                                  Input factors, Input shares, double eps, bool centered) {
    auto a = norm(in, x, shares, eps, centered);
    in.take(a.factors, "factors", factors, {a.rows, a.channels});
    in.give(a.grad, "grad", grad, {a.atoms, a.rows, a.channels});
    in.give(a.direction, "direction", direction, {a.atoms, a.rows, a.channels});
    Tensor by_grad = of_atoms(in, a, a.by_grad), by_x = of_atoms(in, a, a.y);
    Tensor terms = of_atoms(in, a, a.terms);
    run_norm(in.op, a);
    return {by_grad, by_x, terms};
  }

  MDOPS_IMPLEMENT_FLOATS(DegreeNormOps, degree_norm, degree_norm_backward, degree_norm_terms,
                         degree_norm_backward_backward)

 private:
  static NormArgs<T> norm(Checked<Device>& in, Input x, Input shares, double eps, bool centered) {
    NormArgs<T> a{};
    in.take(a.x, "x", x, {kAny, kAny, kAny});
    a.atoms = x.size(0), a.rows = x.size(1), a.channels = x.size(2);
    in.take(a.shares, "shares", shares, {a.rows});
    a.centered = centered, a.eps = static_cast<T>(eps);
    if (a.rows < 1 || a.channels < 1)
      fail(in.op, "argument `x` has ", a.rows, " rows of ", a.channels,
           " channels, expected 1 or more of both");
    if (!(eps > 0)) fail(in.op, "argument `eps` is ", eps, ", expected more than 0");
    return a;
  }
  static Tensor of_atoms(Checked<Device>& in, const NormArgs<T>& a, T*& to) {
    return in.result(to, {a.atoms, a.rows, a.channels});
  }
};

}  // namespace mdops
