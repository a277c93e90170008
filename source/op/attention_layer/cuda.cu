#include "attention_layer/cuda_call.h"
#include "attention_layer/ops.h"

namespace mdops {

template <class T>
static void check_layer(const CudaOp& op, const AttentionLayerArgs<T>& args, const NeighborAttention& over) {
  check_planned<T>(op, over, "g", args.attention.rows);
  const std::string refusal = attention_layer_refusal(args.features, args.attention.width);
  if (!refusal.empty()) fail(op, refusal);
}

template <class T>
static void run_layer(const CudaOp& op, const AttentionLayerArgs<T>& args, const NeighborAttention& over,
                      T* out) {
  run_planned(op, over, args, false, attention_layer_bytes, run_attention_layer, out);
}

template <class T>
static void run_layer_gradients(const CudaOp& op, const AttentionLayerArgs<T>& args,
                                const NeighborAttention& over, const AttentionLayerResults<T>& out) {
  run_planned(op, over, args, true, attention_layer_bytes, run_attention_layer_gradients, out);
}

}  // namespace mdops

MDOPS_ON_GPU(AttentionLayerOps)
