#include <string>
#include <type_traits>

#include "attention_layer/gpu_loops.h"
#include "attention_layer/ops.h"
#include "common/cuda.h"

namespace mdops {

static void check_layer(const CudaOp& op, const LayerInputs& in) {
  if (in.dtype != ScalarType::Float) fail(op, "argument `g` must be of float32 on a GPU");
  const std::string refusal = attention_layer_refusal(in.features, in.width);
  if (!refusal.empty()) fail(op, refusal);
  if (!in.plan) fail(op, "argument `plan` is needed on a GPU");
  if (in.rows > INT32_MAX - kPlanTile) fail(op, "rows must fit into 32-bit indices");
}

// work(plan, memory) of a pass.
template <class Work>
static void with_layer_memory(const CudaOp& op, const LayerInputs& in, const AttentionLayerArgs<float>& args,
                              bool backward, const Work& work) {
  const Tensor items = aligned(*in.plan);
  Tensor memory = empty(op, {attention_layer_bytes(args, backward)}, ScalarType::Byte);
  work(AttentionPlan{items.const_data_ptr<int32_t>(), items.size(0) - 1, in.max_length},
       memory.mutable_data_ptr());
}

template <class T>
static void run_layer(const CudaOp& op, const LayerInputs& in, const AttentionLayerArgs<T>& args, T* out) {
  if constexpr (std::is_same_v<T, float>)
    with_layer_memory(op, in, args, false, [&](const AttentionPlan& plan, void* memory) {
      run_attention_layer(op, args, plan, memory, out);
    });
}

template <class T>
static void run_layer_gradients(const CudaOp& op, const LayerInputs& in, const AttentionLayerArgs<T>& args,
                                const AttentionLayerResults<T>& out) {
  if constexpr (std::is_same_v<T, float>)
    with_layer_memory(op, in, args, true, [&](const AttentionPlan& plan, void* memory) {
      run_attention_layer_gradients(op, args, plan, memory, out);
    });
}

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  mdops::AttentionLayerOps<mdops::OnGpu>::implement(m);
}
