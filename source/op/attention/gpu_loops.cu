#include "attention/gpu_run.h"

namespace mdops::gpu_attention {

MDOPS_FORWARD_PASS(float)

void add_gate_parts(const Gpu& gpu, const TensorArgs<float>& args, const int32_t* bad, const float* parts,
                    int count, float* grad_gate, float* grad_switch) {
  TensorArgs<float> p = args;
  p.bad = bad;
  launch_sum_of_parts(gpu, p, parts, count, grad_gate, grad_switch);
}

}  // namespace mdops::gpu_attention
