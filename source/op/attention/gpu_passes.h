// Attention's passes, for PyTorch and for callers without PyTorch. Their kernels are compiled once: float32
// ones, also for the C core, in gpu_*.cu, the others in cuda_*.cu.
#pragma once

#include <functional>

#include "attention/gpu_args.h"

namespace mdops::gpu_attention {

// `parts`: 2 for float32's accuracy of products, 1 for tf32's. `bad`: memory for kPrepareBlocks integers,
// which are checked again unless `args` has them; `bias_at`: for one per sequence if there is a bias.
template <class T>
void forward_pass(const Gpu& gpu, const TensorArgs<T>& args, int parts, int32_t* bad, int64_t* bias_at,
                  const ForwardResults<T>& results);

// T, not deduced from this argument.
template <class T>
using Kept = std::type_identity_t<T>;

// Returns memory for `count` numbers of float32, in which a pass sums over tiles: none for the gradients of
// float32 and float64.
using SumsMemory = std::function<float*(int64_t count)>;
inline float* no_sums(int64_t) {
  return nullptr;
}

// `grads.out` is null if `grads.delta` already holds G.o; `grad_gate` and `grad_switch` are null if not
// requested.
template <class T>
void backward_pass(const Gpu& gpu, const TensorArgs<T>& args, int parts, int32_t* bad, int64_t* bias_at,
                   const GradientArgs<T>& grads, Kept<T>* grad_gate, Kept<T>* grad_switch,
                   const SumsMemory& sums = no_sums);

// Along the directions `u`.
template <class T>
void second_pass(const Gpu& gpu, const TensorArgs<T>& args, int parts, int32_t* bad, int64_t* bias_at,
                 const GradientArgs<T>& grads, const Directions<T>& u, Kept<T>* grad_gate,
                 Kept<T>* grad_switch, const SumsMemory& sums);

// Sums `count` parts (rows, gates + 1) of the gradients by gate and switch, of several passes, two for each
// head, which these wrote to `GradientArgs::parts`; null if not requested. `bad` as in the passes.
void add_gate_parts(const Gpu& gpu, const TensorArgs<float>& args, const int32_t* bad, const float* parts,
                    int count, float* grad_gate, float* grad_switch);

}  // namespace mdops::gpu_attention
