// A model's sizes, checked, for all callers of its kernels. Without PyTorch.
#pragma once

#include <string>
#include <vector>

#include "common/activation_code.h"
#include "common/cutoff.h"
#include "spline_moment/knots.h"
#include "spline_potential/spline_potential.h"

namespace mdops {

constexpr int64_t kMostRows = 32000;      // of spline functions, to fit 16 bits
constexpr int64_t kMostNumbers = 100000;  // of a width, of a layer's neurons, of extra inputs

// Why no kernel supports a net of this shape, or this many spline functions; empty if some do.
inline std::string shape_refusal(int64_t width, int64_t axis, const std::vector<int64_t>& neurons,
                                 int64_t extra) {
  if (width < 1 || axis < 0 || axis > width || axis > 255 || width > kMostNumbers)
    return "arguments `width` and `axis` are " + std::to_string(width) + " and " + std::to_string(axis) +
           ", expected 0 <= axis <= width and axis <= 255";
  if (neurons.empty() || neurons.size() > kMaxHidden)
    return "a fitting net of " + std::to_string(neurons.size()) + " hidden layers, expected 1 to " +
           std::to_string(kMaxHidden);
  for (const int64_t n : neurons)
    if (n < 1 || n > kMostNumbers) return "a layer of " + std::to_string(n) + " neurons";
  if (extra < 0 || extra > kMostNumbers) return std::to_string(extra) + " further inputs of the fitting net";
  return "";
}

inline std::string rows_refusal(int64_t tables, int64_t basis) {
  if (tables < 1 || basis < 6 || basis > kMostRows || tables > kMostRows / basis)
    return std::to_string(tables) + " types of " + std::to_string(basis) +
           " spline functions each, expected at most " + std::to_string(kMostRows) + " in all";
  return "";
}

// Columns of a table's rows for a descriptor of this width.
inline int64_t table_width(int64_t width) {
  return (width + kTablePad - 1) / kTablePad * kTablePad;
}

inline FittingShape fitting_shape(const Op& op, int64_t width, int64_t axis,
                                  const std::vector<int64_t>& neurons, int64_t extra) {
  const std::string refusal = shape_refusal(width, axis, neurons, extra);
  if (!refusal.empty()) fail(op, refusal);
  FittingShape net{};
  net.width = static_cast<int>(width);
  net.plain = axis == 0;
  net.axis = net.plain ? 1 : static_cast<int>(axis);
  net.features = width * net.axis;
  net.extra = static_cast<int>(extra);
  net.layers = static_cast<int>(neurons.size());
  for (int n = 0; n < net.layers; ++n) net.neurons[n] = static_cast<int>(neurons[n]);
  return net;
}

// Which hidden layers of the net add their input, and the activation function of all of them, by its code.
inline void set_layers(const Op& op, const std::vector<int64_t>& residual, int64_t activation,
                       double threshold, FittingShape& net) {
  net.activate_all(activation_of(op, activation), threshold);
  if (static_cast<int>(residual.size()) != net.layers)
    fail(op, "arguments `residual` and `neurons` differ in length");
  for (int k = 0; k < net.layers; ++k) {
    net.residual[k] = residual[k] != 0;
    if (k && residual[k] && net.neurons[k] != net.neurons[k - 1] && net.neurons[k] != 2 * net.neurons[k - 1])
      fail(op, "a residual layer must be as wide as the one before it, or twice");
  }
}

}  // namespace mdops
