#include "spline_potential/gpu_loops.h"

#include "spline_potential/gpu_fused.h"

namespace mdops {

static_assert(GpuNetShape::kMostLayers == kMaxHidden);

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

template struct FusedStep<2>;
// For the sources that leave these out.
template void launch_moments<2>(const Gpu&, const NetKernel&, int64_t, const StepArgs&);
template void launch_forces<>(const Gpu&, int64_t, const StepArgs&);

}  // namespace mdops
