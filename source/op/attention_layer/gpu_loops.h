// GPU launches of the ops on a layer of attention, in float32, for PyTorch and for callers without PyTorch.
#pragma once

#include <string>
#include <vector>

#include "attention_layer/attention_layer.h"
#include "common/gpu.h"

namespace mdops {

// The work of attention in pieces (attention.h): a row with their number, then `items` of them.
struct AttentionPlan {
  const int32_t* rows;  // (1 + items, kPlanColumns), aligned to 16 bytes
  int64_t items, max_length;
};

// The work of sequences without bias, in order.
std::vector<int32_t> attention_plan(const int32_t* offsets, int64_t sequences);

// The reason if the kernels cannot take this many columns of g and of attention; else empty.
std::string attention_layer_refusal(int64_t features, int64_t width);

// `args` of arrays in GPU memory; `packed` is unused; the forward pass writes `saved`. `memory` on the GPU
// has `attention_layer_bytes` bytes.
int64_t attention_layer_bytes(const AttentionLayerArgs<float>& args, bool backward);
void run_attention_layer(const Gpu& gpu, const AttentionLayerArgs<float>& args, const AttentionPlan& plan,
                         void* memory, float* result);
// The gradients by gate and switch are null if absent.
void run_attention_layer_gradients(const Gpu& gpu, const AttentionLayerArgs<float>& args,
                                   const AttentionPlan& plan, void* memory,
                                   const AttentionLayerResults<float>& out);

}  // namespace mdops
