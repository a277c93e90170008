// What the ops on rows of an atom's neighbours share on a GPU: their kernels are in float32, and take a plan
// and memory.
#pragma once

#include <string>

#include "attention_layer/gpu_loops.h"
#include "common/cuda.h"

namespace mdops {

// `name`: the argument that has the rows.
template <class Inputs>
void check_planned(const CudaOp& op, const Inputs& in, const char* name, int64_t rows) {
  if (in.dtype != ScalarType::Float)
    fail(op, std::string("argument `") + name + "` must be of float32 on a GPU");
  if (!in.plan) fail(op, "argument `plan` is needed on a GPU");
  if (rows > INT32_MAX - kPlanTile) fail(op, "rows must fit into 32-bit indices");
}

// work(plan, memory) of a pass that needs so many bytes.
template <class Inputs, class Work>
void with_plan(const CudaOp& op, const Inputs& in, int64_t bytes, const Work& work) {
  const Tensor items = aligned(*in.plan);
  Tensor memory = empty(op, {bytes}, ScalarType::Byte);
  work(AttentionPlan{data_of(items), items.size(0) - 1, in.max_length}, memory.mutable_data_ptr());
}

}  // namespace mdops
