#include "spline_potential/gpu_loops.h"

#include "spline_potential/gpu_run.h"

namespace mdops {

namespace {

static_assert(GpuNetShape::kMostLayers == kMaxHidden);

// f<parts>().
template <class F>
auto with_parts(int parts, const F& f) {
  return parts == 1 ? f.template operator()<1>() : f.template operator()<2>();
}

}  // namespace

GpuNetShape net_shape(const FittingShape& fitting) {
  GpuNetShape net{};
  net.inputs =
      round_up(Features(fitting.width, fitting.axis).count() + fitting.extra, GpuNetShape::kInputUnit);
  net.layers = fitting.layers;
  for (int n = 0; n < net.layers; ++n)
    net.neurons[n] = fitting.neurons[n], net.residual[n] = fitting.residual[n];
  net.activation = fitting.activation[0], net.threshold = static_cast<float>(fitting.threshold[0]);
  return net;
}

std::string step_refusal(const GpuLimits& limits, const FittingShape& fitting, int ntypes, int moment_rows,
                         int parts) {
  return with_parts(parts, [&]<int Parts>() {
    return step_refusal<Parts>(limits, net_shape(fitting), ntypes, moment_rows, fitting.width, fitting.axis);
  });
}

int64_t step_bytes(const Gpu& gpu, const StepArgs& args, int parts) {
  return with_parts(parts, [&]<int Parts>() { return StepCall<Parts>(gpu, args).bytes(); });
}

void run_step(const Gpu& gpu, const StepArgs& args, int parts, void* memory) {
  with_parts(parts, [&]<int Parts>() { StepCall<Parts>(gpu, args).run(memory); });
}

std::string pack_refusal(const FittingShape& fitting) {
  return matrices_fit(net_shape(fitting)) ? "" : "a layer of the fitting net has too many weights for a GPU";
}

int64_t packed_size(const FittingShape& fitting, int parts) {
  return GpuNet(net_shape(fitting), parts).size;
}

int64_t folded_size(const FittingShape& fitting) {
  const GpuNetShape net = net_shape(fitting);
  return static_cast<int64_t>(net.inputs) * net.neurons[0];
}

void pack_net(const Gpu& gpu, const FittingShape& fitting, const std::vector<DenseLayer<float>>& layers,
              int parts, float* folded, float* packed) {
  const GpuNetShape net = net_shape(fitting);
  std::vector<LayerWeights> weights;
  for (const DenseLayer<float>& layer : layers) weights.push_back({layer.weight, layer.bias, layer.timestep});
  gpu.launch(fold_kernel, net.inputs, 256, 0, weights[0].weight, fitting.width, fitting.axis, fitting.extra,
             net.neurons[0], folded);
  weights[0].weight = folded;
  with_parts(parts, [&]<int Parts>() { NetPacker<Parts>(gpu, net, weights, packed).pack(); });
}

}  // namespace mdops
