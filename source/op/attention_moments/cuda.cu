#include "attention_layer/cuda_call.h"
#include "attention_moments/gpu_loops.h"
#include "attention_moments/ops.h"

namespace mdops {

static void check_moments(const CudaOp& op, const MomentsInputs& in) {
  check_planned(op, in, "rows", in.count);
  const std::string refusal = attention_moments_refusal(in.args<float>());
  if (!refusal.empty()) fail(op, refusal);
}

template <class T>
static void run_moments(const CudaOp& op, const MomentsInputs& in, const AttentionMomentsArgs<T>& args,
                        T* out) {
  run_planned(op, in, args, false, attention_moments_bytes, run_attention_moments, out);
}

template <class T>
static void run_moments_gradients(const CudaOp& op, const MomentsInputs& in,
                                  const AttentionMomentsArgs<T>& args,
                                  const AttentionMomentsResults<T>& out) {
  run_planned(op, in, args, true, attention_moments_bytes, run_attention_moments_gradients, out);
}

}  // namespace mdops

MDOPS_ON_GPU(AttentionMomentsOps)
