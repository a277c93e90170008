// The ops on sums behind layers of attention, their arguments checked at entry. What a device does are
// overloads on the call of an op; it has `check_moments`, which refuses what its kernels do not have.
#pragma once

#include <tuple>

#include "attention_moments/inputs.h"

namespace mdops {

template <class Device>
struct AttentionMomentsOps {
  using Optional = std::optional<Tensor>;
  using Tensors = std::vector<Tensor>;

  static std::tuple<Tensor, Tensor> attention_moments(
      const Tensor& rows, const Tensor& environment, const Tensor& offsets, Tensors inner, Tensors out,
      Tensors bias, Tensors project, Tensors project_bias, Tensors factors, const Tensor& norm_weight,
      const Tensor& norm_bias, const Optional& gate, const Optional& switches, const Optional& absent,
      std::vector<double> scale, double shift, double eps, bool normalize, const Optional& plan,
      int64_t max_length) {
    const auto op = Device::make("attention_moments", "rows", rows);
    const MomentsInputs in =
        inputs(op, {rows,         environment, offsets,     inner,     out,  bias,      project,
                    project_bias, factors,     norm_weight, norm_bias, gate, switches,  absent,
                    scale,        shift,       eps,         normalize, plan, max_length});
    Tensor moments = empty(op, {in.atoms, 4, in.features}, in.dtype);
    Tensor saved = empty(op, {in.count, in.kept()}, in.dtype);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      AttentionMomentsArgs<T> args = in.args<T>();
      args.saved = saved.mutable_data_ptr<T>();
      run_moments(op, in, args, moments.mutable_data_ptr<T>());
    });
    return {moments, saved};
  }

  static std::tuple<Tensor, Tensor, Tensor, Tensor> attention_moments_backward(
      const Tensor& grad, const Tensor& saved, const Tensor& rows, const Tensor& environment,
      const Tensor& offsets, Tensors inner, Tensors out, Tensors bias, Tensors project, Tensors project_bias,
      Tensors factors, const Tensor& norm_weight, const Tensor& norm_bias, const Optional& gate,
      const Optional& switches, const Optional& absent, std::vector<double> scale, double shift, double eps,
      bool normalize, const Optional& plan, int64_t max_length) {
    const auto op = Device::make("attention_moments_backward", "rows", rows);
    const MomentsInputs in =
        inputs(op, {rows,         environment, offsets,     inner,     out,  bias,      project,
                    project_bias, factors,     norm_weight, norm_bias, gate, switches,  absent,
                    scale,        shift,       eps,         normalize, plan, max_length});
    const Tensor by = Device::placed(input(op, "grad", grad, in.dtype, {in.atoms, 4, in.features}));
    const Tensor kept = Device::placed(input(op, "saved", saved, in.dtype, {in.count, in.kept()}));
    MomentsGradients found(op, in);
    dispatch_float(op, in.dtype, [&](auto zero) {
      using T = decltype(zero);
      AttentionMomentsArgs<T> args = in.args<T>();
      args.saved = const_cast<T*>(kept.const_data_ptr<T>());  // which this pass reads alone
      args.grad = by.const_data_ptr<T>();
      run_moments_gradients(op, in, args, found.results<T>(in));
    });
    return {found.rows, found.environment, found.gate, found.switches};
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("attention_moments", TORCH_BOX(&AttentionMomentsOps::attention_moments));
    m.impl("attention_moments_backward", TORCH_BOX(&AttentionMomentsOps::attention_moments_backward));
  }

 private:
  template <class O>
  static MomentsInputs inputs(const O& op, const MomentsGiven& given) {
    MomentsInputs in(op, given);
    in.rows = Device::placed(in.rows), in.environment = Device::placed(in.environment);
    check_moments(op, in);
    return in;
  }
};

}  // namespace mdops
