// What the ops on sums behind layers of attention launch on a GPU, in float32, for PyTorch and for callers
// that do not know PyTorch.
#pragma once

#include <string>

#include "attention_layer/gpu_loops.h"
#include "attention_moments/attention_moments.h"

namespace mdops {

// Why the kernels cannot take these columns; empty if they can.
std::string attention_moments_refusal(const AttentionMomentsArgs<float>& args);

// As of `run_attention_layer`; `saved`, as of `JoinedSaved`, is written by the forward pass. `moments` (N, 4,
// M).
int64_t attention_moments_bytes(const AttentionMomentsArgs<float>& args, bool backward);
void run_attention_moments(const Gpu& gpu, const AttentionMomentsArgs<float>& args, const AttentionPlan& plan,
                           void* memory, float* moments);
void run_attention_moments_gradients(const Gpu& gpu, const AttentionMomentsArgs<float>& args,
                                     const AttentionPlan& plan, void* memory,
                                     const AttentionMomentsResults<float>& out);

}  // namespace mdops
