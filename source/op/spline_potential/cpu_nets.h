// Fitting nets in memory of the CPU's ops.
#pragma once

#include <algorithm>
#include <vector>

#include "gemm/bf16_pack.h"
#include "spline_potential/groups.h"

namespace mdops {

// The head of a net's first layer (FittingShape): (head_rows, neurons[0]), of weights (width * axis + extra,
// neurons[0]) in DeePMD-kit's order k * axis + l of the features.
template <class T>
void fold_head(const FittingShape& net, const T* weight, T* head) {
  const int64_t cols = net.neurons[0];
  for (int k = 0; k < net.axis; ++k)
    for (int l = 0; l <= k; ++l, head += cols) {
      const T *one = weight + (k * net.axis + l) * cols, *other = weight + (l * net.axis + k) * cols;
      for (int64_t c = 0; c < cols; ++c) head[c] = l < k ? one[c] + other[c] : one[c];
    }
}

// The groups of features with their weights, as `bf16_net` asks for them.
template <class T>
struct FeatureGroups {
  const FittingShape& net;
  const NetWeights<T>& weights;

  template <class Work>
  void operator()(const Work& work) const {
    each_group(net, kGroup, [&](const Group& group, int64_t) {
      work(group.features, weights.head ? group_weights(net, weights, group) : nullptr);
    });
  }
};

// The offsets of the parts of one net in an array: first the head, then for each hidden layer weight (inputs,
// outputs), bias and timestep (outputs), and the output layer's weight and bias. Last, on a cache line, the
// matrices in `parts` bfloat16 parts, if wanted.
struct PackedNet {
  int64_t weight[kMaxLayers], bias[kMaxLayers], timestep[kMaxLayers], bf16, size;
  int parts;

  PackedNet(const FittingShape& net, int parts_) : size(net.head_rows() * net.neurons[0]), parts(parts_) {
    int64_t inputs = net.features + net.extra;
    for (int n = 0; n < net.layers; ++n) {
      weight[n] = take(inputs * net.neurons[n]);
      bias[n] = take(net.neurons[n]);
      timestep[n] = take(net.neurons[n]);
      inputs = net.neurons[n];
    }
    weight[net.layers] = take(inputs);
    bias[net.layers] = take(1);
    bf16 = size = (size + 15) / 16 * 16;
    if (!parts) return;
    const NetWeights<float> nothing{};
    Bf16Net unused{};
    const FeatureGroups<float> groups{net, nothing};
    take(Bf16Layout<float>(net, nothing.layer, parts, groups, nullptr, &unused).size / 2);
    size = (size + 15) / 16 * 16;
  }

 private:
  int64_t take(int64_t elements) {
    size += elements;
    return size - elements;
  }
};

template <class T>
NetWeights<T> packed_weights(const FittingShape& net, int parts, T* packed, bool write = false) {
  const PackedNet at(net, parts);
  NetWeights<T> weights{packed, {}, {}};
  for (int n = 0; n <= net.layers; ++n)
    weights.layer[n] = {packed + at.weight[n], packed + at.bias[n],
                        n < net.layers ? packed + at.timestep[n] : nullptr};
  if (!parts) return weights;
  const Bf16Layout<T> layout(net, weights.layer, parts, FeatureGroups<T>{net, weights},
                             reinterpret_cast<uint16_t*>(packed + at.bf16), &weights.bf16);
  if (write) layout.pack(0, layout.tiles(), parts);
  return weights;
}

template <class T>
void pack(const FittingShape& net, int parts, const std::vector<DenseLayer<T>>& layers, T* packed) {
  const PackedNet at(net, parts);
  fold_head(net, layers[0].weight, packed);
  int64_t inputs = net.features + net.extra;
  for (int n = 0; n <= net.layers; ++n) {
    const int64_t outputs = n < net.layers ? net.neurons[n] : 1;
    std::copy_n(layers[n].weight, inputs * outputs, packed + at.weight[n]);
    std::copy_n(layers[n].bias, outputs, packed + at.bias[n]);
    if (n < net.layers) std::copy_n(layers[n].timestep, outputs, packed + at.timestep[n]);
    inputs = outputs;
  }
  packed_weights(net, parts, packed, true);
}

}  // namespace mdops
