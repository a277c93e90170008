// The sizes of the net behind several descriptors. Nothing here knows PyTorch.
#pragma once

#include <vector>

#include "hybrid_potential/hybrid_potential.h"

namespace mdops {

// Numbers of a packed net: each layer's weight, bias and timestep, which the output layer has not.
inline int64_t net_size(const NetShape& net) {
  int64_t inputs = net.features + net.extra, size = 0;
  for (int n = 0; n < net.layers; ++n) {
    size += (inputs + 2) * net.neurons[n];
    inputs = net.neurons[n];
  }
  return size + inputs + 1;
}

// The net behind the features of parts that have these shapes, with as many extra inputs, and hidden layers
// as `layers` has them.
inline NetShape net_behind(const std::vector<FittingShape>& parts, const FittingShape& layers,
                           int64_t extra) {
  NetShape net{};
  for (const FittingShape& part : parts) net.features += feature_rows(part);
  net.extra = static_cast<int>(extra);
  net.layers = layers.layers;
  for (int k = 0; k < layers.layers; ++k) {
    net.neurons[k] = layers.neurons[k], net.residual[k] = layers.residual[k];
    net.activation[k] = layers.activation[k], net.threshold[k] = layers.threshold[k];
  }
  return net;
}

}  // namespace mdops
