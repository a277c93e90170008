#include "attention/gpu_passes.h"
#include "attention/gpu_run.h"

namespace mdops {
namespace gpu_attention {

void forward_pass(const Gpu& gpu, const TensorArgs<float>& args, int parts, int32_t* bad, int64_t* bias_at,
                  const ForwardResults<float>& results) {
  Attention<float>(gpu, args, parts, bad, bias_at).forward(results);
}

void backward_pass(const Gpu& gpu, const TensorArgs<float>& args, int parts, int32_t* bad, int64_t* bias_at,
                   const GradientArgs<float>& grads, float* grad_gate, float* grad_switch) {
  Attention<float>(gpu, args, parts, bad, bias_at).backward(grads, grad_gate, grad_switch, nullptr);
}

void add_gate_parts(const Gpu& gpu, const TensorArgs<float>& args, const int32_t* bad, const float* parts,
                    int count, float* grad_gate, float* grad_switch) {
  TensorArgs<float> p = args;
  p.bad = bad;
  launch_sum_of_parts(gpu, p, parts, count, grad_gate, grad_switch);
}

}  // namespace gpu_attention
}  // namespace mdops
