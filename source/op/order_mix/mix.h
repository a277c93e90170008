// Mixtures of degrees within other ops: the kernels of each device, compiled with those of the own ops.
#pragma once

#include "common/tensor.h"
#include "order_mix/order_mix.h"

namespace mdops {

class CudaOp;

// Of `OrderMixArgs` and `OrderOuterArgs`, of float and double.
template <class Args>
void mix_orders(const Op& op, const Args& args);
template <class Args>
void mix_orders(const CudaOp& op, const Args& args);

}  // namespace mdops
