#include "hybrid_potential/gpu_loops.h"

#include "hybrid_potential/gpu_run.h"
#include "spline_potential/gpu_fold.h"

namespace mdops {

GpuNetShape hybrid_net(const std::vector<FittingShape>& parts, const NetShape& net) {
  GpuNetShape shape{};
  int inputs = net.extra;
  for (const FittingShape& part : parts) inputs += Features(part.width, part.axis).count();
  shape.inputs = round_up(inputs, GpuNetShape::kInputUnit), shape.layers = net.layers;
  for (int n = 0; n < net.layers; ++n) shape.neurons[n] = net.neurons[n], shape.residual[n] = net.residual[n];
  shape.activation = net.activation[0], shape.threshold = static_cast<float>(net.threshold[0]);
  return shape;
}

std::string hybrid_refusal(const GpuLimits& limits, const GpuNetShape& net,
                           const std::vector<StepArgs>& parts) {
  for (const StepArgs& part : parts) {
    const std::string refusal =
        step_refusal<kFp16Splits>(limits, net, part.ntypes, part.moment_rows(), part.width, part.axis);
    if (!refusal.empty()) return refusal;
  }
  return "";
}

std::string hybrid_pack_refusal(const GpuNetShape& net) {
  return matrices_fit(net) ? "" : "a layer of the fitting net has too many weights for a GPU";
}

int64_t hybrid_bytes(const Gpu& gpu, const std::vector<StepArgs>& parts, int widest, const HybridOut& out) {
  return HybridCall(gpu, parts, widest, out).bytes();
}

void run_hybrid(const Gpu& gpu, const std::vector<StepArgs>& parts, int widest, const HybridOut& out,
                void* memory) {
  HybridCall(gpu, parts, widest, out).run(memory);
}

int64_t hybrid_packed_size(const GpuNetShape& net) {
  return GpuNet(net, kFp16Splits).size;
}

int64_t hybrid_folded_size(const GpuNetShape& net) {
  return static_cast<int64_t>(net.inputs) * net.neurons[0];
}

void pack_hybrid(const Gpu& gpu, const std::vector<FittingShape>& parts, const GpuNetShape& net,
                 int64_t extra, const std::vector<DenseLayer<float>>& layers, float* folded, float* packed) {
  std::vector<LayerWeights> weights;
  for (const DenseLayer<float>& layer : layers) weights.push_back({layer.weight, layer.bias, layer.timestep});
  const int neurons = net.neurons[0];
  gpu.clear(folded, 4 * hybrid_folded_size(net));
  const float* from = weights[0].weight;
  float* to = folded;
  for (const FittingShape& part : parts) {
    const int count = Features(part.width, part.axis).count();
    gpu.launch(fold_kernel, count, 256, 0, from, part.width, part.axis, 0, neurons, to);
    from += part.features * neurons, to += static_cast<int64_t>(count) * neurons;
  }
  gpu.check(cudaMemcpyAsync(to, from, 4 * extra * neurons, cudaMemcpyDeviceToDevice, gpu.stream()));
  weights[0].weight = folded;
  NetPacker<kFp16Splits>(gpu, net, weights, packed).pack();
}

}  // namespace mdops
