#include "attention_layer/cuda_call.h"
#include "attention_moments/gpu_loops.h"
#include "attention_moments/ops.h"

namespace mdops {

template <class T>
static void check_moments(const CudaOp& op, const AttentionMomentsArgs<T>& args,
                          const NeighborAttention& over) {
  check_planned<T>(op, over, "rows", args.attention.rows);
  if constexpr (std::is_same_v<T, float>) {
    const std::string refusal = attention_moments_refusal(args);
    if (!refusal.empty()) fail(op, refusal);
  }
}

template <class T>
static void run_moments(const CudaOp& op, const AttentionMomentsArgs<T>& args, const NeighborAttention& over,
                        T* out) {
  run_planned(op, over, args, false, attention_moments_bytes, run_attention_moments, out);
}

template <class T>
static void run_moments_gradients(const CudaOp& op, const AttentionMomentsArgs<T>& args,
                                  const NeighborAttention& over, const AttentionMomentsResults<T>& out) {
  run_planned(op, over, args, true, attention_moments_bytes, run_attention_moments_gradients, out);
}

}  // namespace mdops

MDOPS_ON_GPU(AttentionMomentsOps)
