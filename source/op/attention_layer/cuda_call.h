// Shared GPU code of the ops on rows of an atom's neighbours: their kernels are in float32, and need a plan
// and memory.
#pragma once

#include "attention_layer/gpu_loops.h"
#include "attention_layer/inputs.h"
#include "common/cuda.h"

namespace mdops {

// `name`: the argument that has the rows.
template <class T>
void check_planned(const CudaOp& op, const NeighborAttention& over, const char* name, int64_t rows) {
  if (!std::is_same_v<T, float>) fail(op, "argument `", name, "` must be of float32 on a GPU");
  if (!over.plan) fail(op, "argument `plan` is needed on a GPU");
  if (rows > INT32_MAX - kPlanTile) fail(op, "rows must fit into 32-bit indices");
}

// A pass of an op's kernels, or with `back` the one for gradients; float64 has none.
template <class Args, class Bytes, class Pass, class Out>
void run_planned(const CudaOp& op, const NeighborAttention& over, const Args& args, bool back,
                 const Bytes& bytes, const Pass& pass, const Out& out) {
  if constexpr (std::is_invocable_v<Bytes, const Args&, bool>) {
    Tensor memory = empty(op, {bytes(args, back)}, ScalarType::Byte);
    pass(op, args, AttentionPlan{over.plan, over.items, over.max_length}, memory.mutable_data_ptr(), out);
  }
}

}  // namespace mdops
