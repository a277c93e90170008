// GPU launches of the ops of the features T^T T_<, for PyTorch and for callers without PyTorch.
#pragma once

#include "axis_product/axis_product.h"
#include "common/gpu.h"

namespace mdops {

template <class T>
void run_axis_features(const Gpu& gpu, const AxisArgs<T>& args);
template <class T>
void run_axis_gradients(const Gpu& gpu, const AxisArgs<T>& args);

}  // namespace mdops
