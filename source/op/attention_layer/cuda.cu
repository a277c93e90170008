#include "attention_layer/cuda_call.h"
#include "attention_layer/ops.h"

namespace mdops {

static void check_layer(const CudaOp& op, const LayerInputs& in) {
  check_planned(op, in, "g", in.rows);
  const std::string refusal = attention_layer_refusal(in.features, in.width);
  if (!refusal.empty()) fail(op, refusal);
}

template <class T>
static void run_layer(const CudaOp& op, const LayerInputs& in, const AttentionLayerArgs<T>& args, T* out) {
  run_planned(op, in, args, false, attention_layer_bytes, run_attention_layer, out);
}

template <class T>
static void run_layer_gradients(const CudaOp& op, const LayerInputs& in, const AttentionLayerArgs<T>& args,
                                const AttentionLayerResults<T>& out) {
  run_planned(op, in, args, true, attention_layer_bytes, run_attention_layer_gradients, out);
}

}  // namespace mdops

MDOPS_ON_GPU(AttentionLayerOps)
