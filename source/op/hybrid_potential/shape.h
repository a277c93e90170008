// The sizes of the net behind several descriptors. Without PyTorch.
#pragma once

#include <vector>

#include "hybrid_potential/hybrid_potential.h"

namespace mdops {

// Numbers of a packed net: each layer's weight, bias and timestep (none in the output layer).
inline int64_t net_size(const NetShape& net) {
  int64_t inputs = net.features + net.extra, size = 0;
  for (int n = 0; n < net.layers; ++n) {
    size += (inputs + 2) * net.neurons[n];
    inputs = net.neurons[n];
  }
  return size + inputs + 1;
}

// The net behind the features of parts with these shapes, with `extra` further inputs and `layers`' hidden
// layers.
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

// The offsets of the layers of a packed net.
template <class T>
std::vector<DenseLayer<T>> packed_layers(const NetShape& net, const T* at) {
  std::vector<DenseLayer<T>> layers;
  int64_t inputs = net.features + net.extra;
  for (int n = 0; n < net.layers; ++n) {
    const int64_t outputs = net.neurons[n], weights = inputs * outputs;
    layers.push_back({at, at + weights, at + weights + outputs});
    at += weights + 2 * outputs, inputs = outputs;
  }
  layers.push_back({at, at + inputs, nullptr});
  return layers;
}

// The first weights of a packed net, which has those of two equal features added, in DeePMD-kit's order for
// all: one of the two gets the weights of both.
template <class T>
std::vector<T> unfolded_weights(const std::vector<FittingShape>& parts, const NetShape& net, const T* from) {
  const int64_t columns = net.neurons[0];
  std::vector<T> to;
  for (const FittingShape& part : parts)
    for (int k = 0; k < part.width; ++k)
      for (int l = 0; l < part.axis; ++l) {
        if (l > k) {
          to.resize(to.size() + columns, T(0));
        } else {
          to.insert(to.end(), from, from + columns);
          from += columns;
        }
      }
  to.insert(to.end(), from, from + net.extra * columns);
  return to;
}

}  // namespace mdops
