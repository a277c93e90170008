// The formula of a net, a column of a layer at a time: what every kernel of the net does with a product's
// sums (GpuNetShape has the formula).
#pragma once

#include "common/activation.h"

namespace mdops {

// y = f(x + bias) timestep + residual, and its slope dy/dx.
template <Activation kind>
MDOPS_D void layer_value(float x, float bias, float timestep, float residual, float threshold, float* value,
                         float* slope) {
  activate<kind>(x + bias, threshold, value, slope);
  *value = *value * timestep + residual;
  *slope *= timestep;
}

// The gradient by a layer's y becomes that by its x. (The residual's part for the previous layer is the
// gradient by y itself.)
MDOPS_D float before_activation(float grad, float slope) {
  return grad * slope;
}

// Adds the last hidden layer's part to the output; returns the gradient of scale * output before the
// activation.
MDOPS_D float end_of_net(float value, float slope, float out_weight, float scale, double* output) {
  *output += static_cast<double>(value) * out_weight;
  return before_activation(scale * out_weight, slope);
}

}  // namespace mdops
