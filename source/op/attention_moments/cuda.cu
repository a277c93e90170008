#include <string>
#include <type_traits>

#include "attention_moments/gpu_loops.h"
#include "attention_moments/ops.h"
#include "common/cuda.h"

namespace mdops {

static void check_moments(const CudaOp& op, const MomentsInputs& in) {
  if (in.dtype != ScalarType::Float) fail(op, "argument `rows` must be of float32 on a GPU");
  if (!in.plan) fail(op, "argument `plan` is needed on a GPU");
  if (in.count > INT32_MAX - kPlanTile) fail(op, "rows must fit into 32-bit indices");
  const std::string refusal = attention_moments_refusal(in.args<float>());
  if (!refusal.empty()) fail(op, refusal);
}

// work(plan, memory) of a pass.
template <class Work>
static void with_moments_memory(const CudaOp& op, const MomentsInputs& in,
                                const AttentionMomentsArgs<float>& args, bool backward, const Work& work) {
  const Tensor items = aligned(*in.plan);
  Tensor memory = empty(op, {attention_moments_bytes(args, backward)}, ScalarType::Byte);
  work(AttentionPlan{items.const_data_ptr<int32_t>(), items.size(0) - 1, in.max_length},
       memory.mutable_data_ptr());
}

template <class T>
static void run_moments(const CudaOp& op, const MomentsInputs& in, const AttentionMomentsArgs<T>& args,
                        T* out) {
  if constexpr (std::is_same_v<T, float>)
    with_moments_memory(op, in, args, false, [&](const AttentionPlan& plan, void* memory) {
      run_attention_moments(op, args, plan, memory, out);
    });
}

template <class T>
static void run_moments_gradients(const CudaOp& op, const MomentsInputs& in,
                                  const AttentionMomentsArgs<T>& args,
                                  const AttentionMomentsResults<T>& out) {
  if constexpr (std::is_same_v<T, float>)
    with_moments_memory(op, in, args, true, [&](const AttentionPlan& plan, void* memory) {
      run_attention_moments_gradients(op, args, plan, memory, out);
    });
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::AttentionMomentsOps<mdops::OnGpu>::implement(m);
}
