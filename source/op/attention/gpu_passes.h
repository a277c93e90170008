// Attention's passes as other families' ops call them, in float32 without bias. Kernels are compiled once, in
// cuda.cu.
#pragma once

#include "attention/gpu_args.h"

namespace mdops {
namespace gpu_attention {

// `parts`: 2 for the accuracy of float32's products. `bad`: memory for kPrepareBlocks integers.
void forward_pass(const Gpu& gpu, const TensorArgs<float>& args, int parts, int32_t* bad,
                  const ForwardResults<float>& results);

// `grads.out` null where `grads.delta` holds G.o already; `grad_gate` and `grad_switch` null where they are
// not asked for.
void backward_pass(const Gpu& gpu, const TensorArgs<float>& args, int parts, int32_t* bad,
                   const GradientArgs<float>& grads, float* grad_gate, float* grad_switch);

}  // namespace gpu_attention
}  // namespace mdops
