// Attention's passes, for PyTorch and for callers that do not know PyTorch. Their kernels are compiled once:
// those of float32 that the C core has, too, in gpu_*.cu, the others in cuda_*.cu.
#pragma once

#include <functional>

#include "attention/gpu_args.h"

namespace mdops::gpu_attention {

// `parts`: 2 for the accuracy of float32's products, 1 for that of tf32's. `bad`: memory for kPrepareBlocks
// integers, which are judged anew unless `args` has them; `bias_at`: for one a sequence where there is a
// bias.
template <class T>
void forward_pass(const Gpu& gpu, const TensorArgs<T>& args, int parts, int32_t* bad, int64_t* bias_at,
                  const ForwardResults<T>& results);

// T, where other arguments tell which.
template <class T>
using Kept = std::type_identity_t<T>;

// Gives memory for so many numbers of float32, in which a pass adds up over tiles: none for the gradients of
// float32 and float64.
using SumsMemory = std::function<float*(int64_t count)>;
inline float* no_sums(int64_t) {
  return nullptr;
}

// `grads.out` null where `grads.delta` holds G.o already; `grad_gate` and `grad_switch` null where they are
// not asked for.
template <class T>
void backward_pass(const Gpu& gpu, const TensorArgs<T>& args, int parts, int32_t* bad, int64_t* bias_at,
                   const GradientArgs<T>& grads, Kept<T>* grad_gate, Kept<T>* grad_switch,
                   const SumsMemory& sums = no_sums);

// Along the directions `u`.
template <class T>
void second_pass(const Gpu& gpu, const TensorArgs<T>& args, int parts, int32_t* bad, int64_t* bias_at,
                 const GradientArgs<T>& grads, const Directions<T>& u, Kept<T>* grad_gate,
                 Kept<T>* grad_switch, const SumsMemory& sums);

// Adds up `count` parts (rows, gates + 1) of the gradients by gate and switch, of several passes, two for
// each head, which these left in `GradientArgs::parts`; null where one is not asked for. `bad` as of the
// passes.
void add_gate_parts(const Gpu& gpu, const TensorArgs<float>& args, const int32_t* bad, const float* parts,
                    int count, float* grad_gate, float* grad_switch);

}  // namespace mdops::gpu_attention
