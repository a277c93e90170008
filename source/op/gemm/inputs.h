// The arguments of the ops on nets, checked at entry; for the CPU and for GPUs.
#pragma once

#include "common/activation_code.h"
#include "common/checked.h"
#include "gemm/matmul.h"
#include "gemm/mlp.h"

namespace mdops {

constexpr int64_t kMostNeurons = 1 << 20;

// The ops' arguments besides x.
struct NetArguments {
  const Tensors &weights, &biases, &timesteps;
  const std::vector<int64_t>&residual, &activations;
  const std::vector<double>& thresholds;
  const std::string& matmul;
  using Lists = const Tensors&;
  using Integers = const std::vector<int64_t>&;
  using Parts =
      TypeList<Lists, Lists, Lists, Integers, Integers, const std::vector<double>&, const std::string&>;
};

struct MlpInputs {
  Tensor x;
  Tensors weights, biases, timesteps;  // an empty one: none
  NetShape shape{};
  ScalarType dtype = x.scalar_type();
  Matmul matmul;
  int64_t rows = x.size(0), outputs;

  MlpInputs(const Op& op, Input x_, const NetArguments& net)
      : x(float_input(op, "x", x_, {kAny, kAny})),
        weights(net.weights),
        biases(net.biases),
        timesteps(net.timesteps),
        matmul(matmul_of(op, net.matmul)) {
    const size_t layers = weights.size();
    if (layers < 1 || layers > kMaxLayers)
      fail(op, "argument `weights` has ", layers, " layers, expected 1 to ", kMaxLayers);
    if (biases.size() != layers || timesteps.size() != layers)
      fail(op, "arguments `biases` and `timesteps` must have one tensor a layer, an empty one for none");
    if (net.residual.size() != layers - 1 || net.activations.size() != layers - 1 ||
        net.thresholds.size() != layers - 1)
      fail(op, "arguments `residual`, `activations` and `thresholds` must have one number a hidden layer");
    shape.features = x.size(1), shape.layers = static_cast<int>(layers);
    int64_t width = shape.features;
    if (width < 1) fail(op, "argument `x` has no columns");
    for (size_t n = 0; n < layers; ++n) {
      weights[n] = input(op, "weights", weights[n], dtype, {width, kAny});
      const int64_t outputs_of = weights[n].size(1);
      if (outputs_of < 1 || outputs_of > kMostNeurons)
        fail(op, "argument `weights` has a layer of ", outputs_of, " outputs");
      biases[n] = vector(op, "biases", biases[n], outputs_of);
      timesteps[n] = vector(op, "timesteps", timesteps[n], outputs_of);
      shape.neurons[n] = static_cast<int>(outputs_of);
      if (n + 1 < layers) set_hidden(op, n, width, net.residual[n], net.activations[n], net.thresholds[n]);
      width = outputs_of;
    }
    if (timesteps[layers - 1].numel()) fail(op, "argument `timesteps` has some of the output layer");
    outputs = width;
  }

  bool has_timestep(int n) const { return timesteps[n].numel() > 0; }

 private:
  Tensor vector(const Op& op, const char* name, Input given, int64_t size) const {
    return input(op, name, given, dtype, {given.numel() ? size : 0});
  }

  void set_hidden(const Op& op, size_t n, int64_t inputs, int64_t residual, int64_t activation,
                  double threshold) {
    shape.activation[n] = activation_of(op, activation, "activations");
    shape.threshold[n] = threshold;
    shape.residual[n] = residual != 0;
    if (residual && shape.neurons[n] != inputs && shape.neurons[n] != 2 * inputs)
      fail(op, "a residual layer must be as wide as its input, or twice");
  }
};

// Empty tensors for gradients by weights, biases and timesteps; without elements if not requested.
struct MlpGradients {
  Tensors weights, biases, timesteps;

  MlpGradients(const Op& op, const MlpInputs& in, bool wanted) {
    const auto like = [&](Input tensor) {
      const auto sizes = tensor.sizes();
      return empty(op, wanted ? std::vector<int64_t>(sizes.begin(), sizes.end()) : std::vector<int64_t>{0},
                   in.dtype);
    };
    for (size_t n = 0; n < in.weights.size(); ++n) {
      weights.push_back(like(in.weights[n]));
      biases.push_back(like(in.biases[n]));
      timesteps.push_back(like(in.timesteps[n]));
    }
  }
};

}  // namespace mdops
