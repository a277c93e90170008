// A whole step of several descriptors on the CPU: what is done in threads, and the sums over them. Nothing
// here knows PyTorch.
#pragma once

#include <vector>

#include "hybrid_potential/hybrid_potential.h"
#include "spline_potential/cpu_loops.h"

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
NetShape net_behind(const std::vector<FittingShape>& parts, const FittingShape& layers, int64_t extra);

// The step, with nets one after the other; `within` and `grad_extra` as in HybridResults, zero for virtual
// atoms at entry.
template <class T>
void hybrid_step(const Op& op, const HybridArgs<T>& args, const T* nets, const StepResults<T>& results,
                 int32_t* within, T* grad_extra);

}  // namespace mdops
