// The ops on attention. A device has `attend`, `attention_gradients` and `attention_seconds`.
#pragma once

#include "attention/inputs.h"
#include "common/bind.h"

namespace mdops {

// By q, k, v, bias, gate and switch; of no elements where the latter three are absent.
using AttentionGradients = Outputs<6>;

template <class Device>
struct AttentionOps {
  using Optional = std::optional<Tensor>;

  static Outputs<2> ragged_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& offsets,
                                     const Tensor& plan, const Optional& bias, const Optional& gate,
                                     const Optional& switches, const Optional& absent, double scale,
                                     double shift, int64_t max_length, const std::string& matmul) {
    const auto op = Device::make("ragged_attention", "q", q);
    return attend(op, AttentionInputs(op, q, k, v, offsets, plan, bias, gate, switches, absent, scale, shift,
                                      max_length, matmul));
  }

  static AttentionGradients ragged_attention_backward(const Tensor& grad_out, const Tensor& q,
                                                      const Tensor& k, const Tensor& v, const Tensor& out,
                                                      const Tensor& logsumexp, const Tensor& offsets,
                                                      const Tensor& plan, const Optional& bias,
                                                      const Optional& gate, const Optional& switches,
                                                      const Optional& absent, double scale, double shift,
                                                      int64_t max_length, const std::string& matmul) {
    const auto op = Device::make("ragged_attention_backward", "q", q);
    const AttentionInputs in(op, q, k, v, offsets, plan, bias, gate, switches, absent, scale, shift,
                             max_length, matmul);
    return attention_gradients(op, in, AttentionSaved(op, in, grad_out, out, logsumexp));
  }

  // By grad_out, and the others.
  static Outputs<7> ragged_attention_backward_backward(
      const Tensor& dq, const Tensor& dk, const Tensor& dv, const Optional& dbias, const Optional& dgate,
      const Optional& dswitch, const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v,
      const Tensor& out, const Tensor& logsumexp, const Tensor& offsets, const Tensor& plan,
      const Optional& bias, const Optional& gate, const Optional& switches, const Optional& absent,
      double scale, double shift, int64_t max_length, const std::string& matmul) {
    const auto op = Device::make("ragged_attention_backward_backward", "q", q);
    const AttentionInputs in(op, q, k, v, offsets, plan, bias, gate, switches, absent, scale, shift,
                             max_length, matmul);
    const AttentionSaved saved(op, in, grad_out, out, logsumexp);
    const AttentionDirections along(op, in, dq, dk, dv, dbias, dgate, dswitch);
    return attention_seconds(op, in, saved, along);
  }

  MDOPS_IMPLEMENT(AttentionOps, ragged_attention, ragged_attention_backward,
                  ragged_attention_backward_backward)
};

}  // namespace mdops
