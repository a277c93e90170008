// GPU launches of the ops on sums after layers of attention, in float32, for PyTorch and for callers without
// PyTorch.
#pragma once

#include <string>

#include "attention_layer/gpu_loops.h"
#include "attention_moments/attention_moments.h"

namespace mdops {

// The reason if the kernels cannot take these columns; else empty.
std::string attention_moments_refusal(const AttentionMomentsArgs<float>& args);

// As `run_attention_layer`; the forward pass writes `saved` (`JoinedSaved`). `moments` (N, 4, M).
int64_t attention_moments_bytes(const AttentionMomentsArgs<float>& args, bool backward);
void run_attention_moments(const Gpu& gpu, const AttentionMomentsArgs<float>& args, const AttentionPlan& plan,
                           void* memory, float* moments);
void run_attention_moments_gradients(const Gpu& gpu, const AttentionMomentsArgs<float>& args,
                                     const AttentionPlan& plan, void* memory,
                                     const AttentionMomentsResults<float>& out);

}  // namespace mdops
