// The ops on attention. A device has `attend`, `attention_gradients` and `attention_seconds`.
#pragma once

#include "attention/inputs.h"
#include "common/bind.h"

namespace mdops {

// By q, k, v, bias, gate and switch; the latter three are empty if absent.
using AttentionGradients = Outputs<6>;

template <class Device>
struct AttentionOps {
  static Outputs<2> ragged_attention(Checked<Device>& in, Input q, Input k, Input v, Input offsets,
                                     Input plan, const Optional& bias, const Optional& gate,
                                     const Optional& switches, const Optional& absent, double scale,
                                     double shift, int64_t max_length, const std::string& matmul) {
    return attend(in.op, AttentionInputs(in.op, q, k, v, offsets, plan, bias, gate, switches, absent, scale,
                                         shift, max_length, matmul));
  }

  static AttentionGradients ragged_attention_backward(Checked<Device>& in, Input grad_out, Input q, Input k,
                                                      Input v, Input out, Input logsumexp, Input offsets,
                                                      Input plan, const Optional& bias, const Optional& gate,
                                                      const Optional& switches, const Optional& absent,
                                                      double scale, double shift, int64_t max_length,
                                                      const std::string& matmul) {
    const AttentionInputs a(in.op, q, k, v, offsets, plan, bias, gate, switches, absent, scale, shift,
                            max_length, matmul);
    return attention_gradients(in.op, a, AttentionSaved(in.op, a, grad_out, out, logsumexp));
  }

  // By grad_out, and the others.
  static Outputs<7> ragged_attention_backward_backward(
      Checked<Device>& in, Input dq, Input dk, Input dv, const Optional& dbias, const Optional& dgate,
      const Optional& dswitch, Input grad_out, Input q, Input k, Input v, Input out, Input logsumexp,
      Input offsets, Input plan, const Optional& bias, const Optional& gate, const Optional& switches,
      const Optional& absent, double scale, double shift, int64_t max_length, const std::string& matmul) {
    const AttentionInputs a(in.op, q, k, v, offsets, plan, bias, gate, switches, absent, scale, shift,
                            max_length, matmul);
    const AttentionSaved saved(in.op, a, grad_out, out, logsumexp);
    const AttentionDirections along(in.op, a, dq, dk, dv, dbias, dgate, dswitch);
    return attention_seconds(in.op, a, saved, along);
  }

  MDOPS_IMPLEMENT(AttentionOps, ragged_attention, ragged_attention_backward,
                  ragged_attention_backward_backward)
};

}  // namespace mdops
