// Mixtures of degrees within other ops: the kernels of each device, compiled with those of the own ops.
#pragma once

#include "common/tensor.h"
#include "order_mix/order_mix.h"

namespace mdops {

// Of `OrderMixArgs` and `OrderOuterArgs`, of float and double.
template <class Call, class Args>
void mix_orders(const Call& op, const Args& args);

}  // namespace mdops
