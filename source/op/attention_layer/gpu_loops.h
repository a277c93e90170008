// What the ops on a layer of attention launch on a GPU, in float32, for PyTorch and for callers that do not
// know PyTorch.
#pragma once

#include <string>
#include <vector>

#include "attention_layer/attention_layer.h"
#include "common/gpu.h"

namespace mdops {

// The work of attention in pieces (attention.h): a row with their number before `items` of them.
struct AttentionPlan {
  const int32_t* rows;  // (1 + items, kPlanColumns), on 16 bytes
  int64_t items, max_length;
};

// That of sequences without bias, one after the other.
std::vector<int32_t> attention_plan(const int32_t* offsets, int64_t sequences);

// Why the kernels cannot take so many columns of g and of attention; empty if they can.
std::string attention_layer_refusal(int64_t features, int64_t width);

// `args` of arrays in the GPU's memory, whose `packed` nobody asks for; `saved` is written by the forward
// pass. `memory` of the GPU has as many bytes as `attention_layer_bytes` says.
int64_t attention_layer_bytes(const AttentionLayerArgs<float>& args, bool backward);
void run_attention_layer(const Gpu& gpu, const AttentionLayerArgs<float>& args, const AttentionPlan& plan,
                         void* memory, float* result);
// The gradients by gate and switch null where there are none.
void run_attention_layer_gradients(const Gpu& gpu, const AttentionLayerArgs<float>& args,
                                   const AttentionPlan& plan, void* memory,
                                   const AttentionLayerResults<float>& out);

}  // namespace mdops
