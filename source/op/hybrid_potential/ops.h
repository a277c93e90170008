// The ops on a whole step of several descriptors. A device has `hybrid_answer` and `packed_net`.
#pragma once

#include "common/bind.h"
#include "hybrid_potential/inputs.h"

namespace mdops {

using HybridOutputs = Outputs<8>;

template <class Device>
struct HybridOps {
  static constexpr auto arguments = take_hybrid<Checked<Device>>;

  static Tensor hybrid_potential_pack(Checked<Device>& in, Tensors weights, Tensors biases, Tensors timesteps,
                                      Integers width, Integers axis) {
    return packed_net(in.op, HybridNetInputs(in.op, std::move(weights), std::move(biases),
                                             std::move(timesteps), width, axis));
  }

  static HybridOutputs hybrid_potential(Checked<Device>& in, HybridInputs& a) {
    return hybrid_answer(in.op, a);
  }

  MDOPS_IMPLEMENT(HybridOps, hybrid_potential_pack, hybrid_potential)
};

}  // namespace mdops
