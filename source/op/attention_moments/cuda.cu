#include <string>
#include <type_traits>

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
  if constexpr (std::is_same_v<T, float>)
    with_plan(op, in, attention_moments_bytes(args, false), [&](const AttentionPlan& plan, void* memory) {
      run_attention_moments(op, args, plan, memory, out);
    });
}

template <class T>
static void run_moments_gradients(const CudaOp& op, const MomentsInputs& in,
                                  const AttentionMomentsArgs<T>& args,
                                  const AttentionMomentsResults<T>& out) {
  if constexpr (std::is_same_v<T, float>)
    with_plan(op, in, attention_moments_bytes(args, true), [&](const AttentionPlan& plan, void* memory) {
      run_attention_moments_gradients(op, args, plan, memory, out);
    });
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::AttentionMomentsOps<mdops::OnGpu>::implement(m);
}
