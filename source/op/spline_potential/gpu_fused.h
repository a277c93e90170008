// Functions of the fused step: for the sources of a library that compile it.
#pragma once

#include "spline_potential/gpu_loops.h"
#include "spline_potential/gpu_run.h"

namespace mdops {

template <int Parts>
std::string FusedStep<Parts>::refusal(const GpuLimits& limits, const FittingShape& fitting, int ntypes,
                                      int moment_rows) {
  return step_refusal<Parts>(limits, net_shape(fitting), ntypes, moment_rows, fitting.width, fitting.axis);
}

template <int Parts>
int64_t FusedStep<Parts>::bytes(const Gpu& gpu, const StepArgs& args) {
  return StepCall<Parts>(gpu, args).bytes();
}

template <int Parts>
void FusedStep<Parts>::run(const Gpu& gpu, const StepArgs& args, void* memory) {
  StepCall<Parts>(gpu, args).run(memory);
}

template <int Parts>
void FusedStep<Parts>::pack(const Gpu& gpu, const FittingShape& fitting,
                            const std::vector<DenseLayer<float>>& layers, float* folded, float* packed) {
  const GpuNetShape net = net_shape(fitting);
  std::vector<LayerWeights> weights;
  for (const DenseLayer<float>& layer : layers) weights.push_back({layer.weight, layer.bias, layer.timestep});
  gpu.launch(fold_kernel, net.inputs, 256, 0, weights[0].weight, fitting.width, fitting.axis, fitting.extra,
             net.neurons[0], folded);
  weights[0].weight = folded;
  NetPacker<Parts>(gpu, net, weights, packed).pack();
}

}  // namespace mdops
