// The fitting net over a block of atoms, an atom a lane, for one instruction set.
#pragma once

#include "spline_potential/features.h"

namespace mdops {
namespace MDOPS_ISA {

// A block's memory.
template <class T>
struct NetBlock {
  Panels<T> t, grad_t;          // T and its gradient
  Panels<T> extra;              // further inputs
  Panels<T> value[kMaxLayers];  // after activation, timestep and residual
  Panels<T> slope[kMaxLayers];  // timestep * f'
  T* work;                      // a group of D
};

// Adds to `out` what a residual layer adds to its output: its input, twice if the output is twice as wide.
template <class T>
inline void add_input(const FittingShape& net, int n, const Panels<T>& input, const Panels<T>& out) {
  if (!net.adds_input(n)) return;
  for (int64_t row = 0; row < net.neurons[n]; ++row)
    out.each([&](auto place) {
      vector_at(place.in(out, row)) += vector_at(place.in(input, row % net.neurons[n - 1]));
    });
}

// What a residual layer's input gets directly from the gradient of its output. Returns whether there is such
// a part.
template <class T>
inline bool input_gradient(const FittingShape& net, int n, const Panels<T>& grad, const Panels<T>& before) {
  if (!net.adds_input(n)) return false;
  const int64_t width = net.neurons[n - 1];
  const bool twice = net.neurons[n] > width;
  for (int64_t row = 0; row < width; ++row)
    before.each([&](auto place) {
      Vector<T> sum = vector_at(place.in(grad, row));
      if (twice) sum += vector_at(place.in(grad, width + row));
      vector_at(place.in(before, row)) = sum;
    });
  return true;
}

// x W of layer n, for the inputs before it (of the first layer: D's part is there already, only `extra` is
// added).
template <class T>
inline void layer_product(const FittingShape& net, const NetWeights<T>& weights, int n,
                          const Panels<T>& input, const Panels<T>& out) {
  const int64_t cols = net.neurons[n];
  const T* w = weights.layer[n].weight;
  if (n)
    gemm(cols, net.neurons[n - 1], ByDepth<T>{w, cols}, input, out, false);
  else if (net.extra)
    gemm(cols, net.extra, ByDepth<T>{w + int64_t(net.width) * net.axis * cols, cols}, input, out, true);
}

// Adds to `grad` the gradient of layer n's input (n > 0), or puts it there.
template <class T>
inline void layer_backward(const FittingShape& net, const NetWeights<T>& weights, int n,
                           const Panels<T>& delta, const Panels<T>& grad, bool add) {
  gemm(net.neurons[n - 1], net.neurons[n], ByRow<T>{weights.layer[n].weight, net.neurons[n]}, delta, grad,
       add);
}

// value = f(value + bias) * timestep + residual, slope = f' * timestep.
template <class T>
inline void activate_layer(const FittingShape& net, const NetWeights<T>& weights, const NetBlock<T>& block,
                           int n) {
  const DenseLayer<T>& layer = weights.layer[n];
  const T threshold = static_cast<T>(net.threshold);
  with_activation(net.activation, [&]<Activation kind>() {
    for (int64_t row = 0; row < net.neurons[n]; ++row) {
      const T bias = layer.bias[row], timestep = layer.timestep[row];
      block.value[n].each([&](auto place) {
        T *value = place.in(block.value[n], row), *slope = place.in(block.slope[n], row);
        MDOPS_INDEPENDENT
        for (int k = 0; k < kLanes<T>; ++k) {
          T y, dy;
          activate<kind>(value[k] + bias, threshold, &y, &dy);
          value[k] = y * timestep;
          slope[k] = dy * timestep;
        }
      });
    }
  });
  if (n) add_input(net, n, block.value[n - 1], block.value[n]);
}

// Fills the block's values and slopes from T and `extra`.
template <class T>
inline void net_forward(const FittingShape& net, const NetWeights<T>& weights, const NetBlock<T>& block) {
  const auto form = [&](const Group& group, const Panels<T>& out) { form_group(net, block.t, group, out); };
  first_product(net, weights, form, block.work, block.value[0]);
  for (int n = 0; n < net.layers; ++n) {
    layer_product(net, weights, n, n ? block.value[n - 1] : block.extra, block.value[n]);
    activate_layer(net, weights, block, n);
  }
}

// The net's outputs for all lanes.
template <class T>
inline void net_output(const FittingShape& net, const NetWeights<T>& weights, const Panels<T>& value,
                       double* out) {
  const DenseLayer<T>& layer = weights.layer[net.layers];
  value.each([&](auto place) {
    double* sum = out + place.lane();
    for (int k = 0; k < kLanes<T>; ++k) sum[k] = layer.bias[0];
    for (int64_t row = 0; row < net.neurons[net.layers - 1]; ++row) {
      const T* v = place.in(value, row);
      MDOPS_INDEPENDENT
      for (int k = 0; k < kLanes<T>; ++k) sum[k] += static_cast<double>(v[k]) * layer.weight[row];
    }
  });
}

// The gradient of the energies by the last layer's output.
template <class T>
inline void output_gradient(const FittingShape& net, const NetWeights<T>& weights, T scale,
                            const Panels<T>& grad) {
  for (int64_t row = 0; row < net.neurons[net.layers - 1]; ++row) {
    const Vector<T> out = scale * weights.layer[net.layers].weight[row] + Vector<T>{};
    grad.each([&](auto place) { vector_at(place.in(grad, row)) = out; });
  }
}

// grad_t = scale * d(output)/dT. Uses up the block: value[n] becomes the gradient of layer n, slope[n] that
// before the activation.
template <class T>
inline void net_backward(const FittingShape& net, const NetWeights<T>& weights, const NetBlock<T>& block,
                         T scale) {
  output_gradient(net, weights, scale, block.value[net.layers - 1]);
  for (int n = net.layers - 1; n >= 0; --n) {
    const Panels<T>&grad = block.value[n], &slope = block.slope[n];
    for (int64_t row = 0; row < net.neurons[n]; ++row)
      grad.each([&](auto place) { vector_at(place.in(slope, row)) *= vector_at(place.in(grad, row)); });
    if (n == 0) break;
    const bool add = input_gradient(net, n, grad, block.value[n - 1]);
    layer_backward(net, weights, n, slope, block.value[n - 1], add);
  }
  clear_from(block.grad_t, 0);
  const auto to = [&](const Group& group, int64_t) {
    return Panels<T>{block.work, group.features, block.t.cols};
  };
  first_backward(net, weights, block.slope[0], to, [&](const Group& group, int64_t, const Panels<T>& grad) {
    unform_group(net, block.t, group, grad, block.grad_t);
  });
}

}  // namespace MDOPS_ISA
}  // namespace mdops
