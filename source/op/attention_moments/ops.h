// The ops on sums behind layers of attention. A device has `check_moments`, which refuses what its kernels do
// not have.
#pragma once

#include "attention_moments/inputs.h"
#include "common/bind.h"

namespace mdops {

template <class Device>
struct AttentionMomentsOps {
  using Call = typename Device::Call;

  static Outputs<2> attention_moments(const Call& op, MomentsInputs& in) {
    prepare(op, in);
    Tensor moments = empty(op, {in.atoms, 4, in.features}, in.dtype);
    Tensor saved = empty(op, {in.count, in.kept()}, in.dtype);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      AttentionMomentsArgs<T> args = in.args<T>();
      args.saved = data_of(saved);
      run_moments<T>(op, in, args, data_of(moments));
    });
    return {moments, saved};
  }

  static Outputs<4> attention_moments_backward(const Call& op, MomentsInputs& in, const Tensor& grad,
                                               const Tensor& saved) {
    prepare(op, in);
    const Tensor by = Device::placed(input(op, "grad", grad, in.dtype, {in.atoms, 4, in.features}));
    const Tensor kept = Device::placed(input(op, "saved", saved, in.dtype, {in.count, in.kept()}));
    MomentsGradients found(op, in);
    dispatch_float(op, in.dtype, [&]<class T>(T) {
      AttentionMomentsArgs<T> args = in.args<T>();
      args.saved = const_cast<T*>(kept.const_data_ptr<T>());  // which this pass reads alone
      args.grad = data_of(by);
      run_moments_gradients(op, in, args, found.results<T>(in));
    });
    return {found.rows, found.environment, found.gate, found.switches};
  }

  MDOPS_IMPLEMENT(AttentionMomentsOps, attention_moments, attention_moments_backward)

 private:
  static void prepare(const Call& op, MomentsInputs& in) {
    in.rows = Device::placed(in.rows), in.environment = Device::placed(in.environment);
    check_moments(op, in);
  }
};

}  // namespace mdops
