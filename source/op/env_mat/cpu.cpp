#include "env_mat/cpu_loops.h"
#include "env_mat/inputs.h"

namespace mdops {

namespace {

Tensor env_mat(const Tensor& displacements, const Tensor& counts, const Tensor& types, const Tensor& mean_,
               const Tensor& std, const Tensor& pair_mask, double cutoff, double cutoff_smooth,
               double protection, bool radial) {
  constexpr const char* op = "env_mat";
  const EnvMatInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                        radial);
  const Tensor mean = input(op, "mean", mean_, in.dtype, {in.ntypes});
  Tensor result = empty({in.atoms, in.width, in.columns}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    env_mat_rows(in.args(mean.const_data_ptr<T>()), result.mutable_data_ptr<T>());
  });
  return result;
}

Tensor env_mat_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& counts,
                        const Tensor& types, const Tensor& std, const Tensor& pair_mask, double cutoff,
                        double cutoff_smooth, double protection, bool radial) {
  constexpr const char* op = "env_mat_backward";
  const EnvMatInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                        radial);
  const Tensor grad = in.grad(op, grad_);
  Tensor result = zeros({in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    env_mat_gradients(in.args<T>(nullptr), grad.const_data_ptr<T>(), result.mutable_data_ptr<T>());
  });
  return result;
}

std::tuple<Tensor, Tensor> env_mat_backward_backward(const Tensor& tangent_, const Tensor& grad_,
                                                     const Tensor& displacements, const Tensor& counts,
                                                     const Tensor& types, const Tensor& std,
                                                     const Tensor& pair_mask, double cutoff,
                                                     double cutoff_smooth, double protection, bool radial) {
  constexpr const char* op = "env_mat_backward_backward";
  const EnvMatInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                        radial);
  const Tensor grad = in.grad(op, grad_);
  const Tensor tangent = input(op, "tangent", tangent_, in.dtype, {in.atoms, in.width, 3});
  Tensor grad_grad = zeros({in.atoms, in.width, in.columns}, in.dtype);
  Tensor grad_d = zeros({in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    env_mat_second(in.args<T>(nullptr), tangent.const_data_ptr<T>(), grad.const_data_ptr<T>(),
                   grad_grad.mutable_data_ptr<T>(), grad_d.mutable_data_ptr<T>());
  });
  return {grad_grad, grad_d};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("env_mat", TORCH_BOX(&mdops::env_mat));
  m.impl("env_mat_backward", TORCH_BOX(&mdops::env_mat_backward));
  m.impl("env_mat_backward_backward", TORCH_BOX(&mdops::env_mat_backward_backward));
}
