// Attention's passes in float32, for PyTorch and for callers that do not know PyTorch. Their kernels are
// compiled once, in gpu_loops.cu.
#pragma once

#include "attention/gpu_args.h"

namespace mdops {
namespace gpu_attention {

// `parts`: 2 for the accuracy of float32's products, 1 for that of tf32's. `bad`: memory for kPrepareBlocks
// integers, which are judged anew unless `args` has them; `bias_at`: for one a sequence where there is a
// bias.
void forward_pass(const Gpu& gpu, const TensorArgs<float>& args, int parts, int32_t* bad, int64_t* bias_at,
                  const ForwardResults<float>& results);

// `grads.out` null where `grads.delta` holds G.o already; `grad_gate` and `grad_switch` null where they are
// not asked for.
void backward_pass(const Gpu& gpu, const TensorArgs<float>& args, int parts, int32_t* bad, int64_t* bias_at,
                   const GradientArgs<float>& grads, float* grad_gate, float* grad_switch);

// Adds up `count` parts (rows, gates + 1) of the gradients by gate and switch, of several passes, two for
// each head, which these left in `GradientArgs::parts`; null where one is not asked for. `bad` as of the
// passes.
void add_gate_parts(const Gpu& gpu, const TensorArgs<float>& args, const int32_t* bad, const float* parts,
                    int count, float* grad_gate, float* grad_switch);

}  // namespace gpu_attention
}  // namespace mdops
