// The ops on a whole step of several descriptors. A device has `hybrid_answer` and `packed_net`.
#pragma once

#include "common/bind.h"
#include "hybrid_potential/inputs.h"

namespace mdops {

using HybridOutputs = Outputs<8>;

template <class Device>
struct HybridOps {
  using Call = typename Device::Call;

  static Tensor hybrid_potential_pack(Tensors weights, Tensors biases, Tensors timesteps, Integers width,
                                      Integers axis) {
    constexpr const char* name = "hybrid_potential_pack";
    if (weights.empty())
      fail(name, "expected weights, biases and timesteps of two layers or more, as many of each");
    const auto op = Device::make(name, "weights", weights[0]);
    return packed_net(
        op, HybridNetInputs(op, std::move(weights), std::move(biases), std::move(timesteps), width, axis));
  }

  static HybridOutputs hybrid_potential(const Call& op, const HybridInputs& in) {
    return hybrid_answer(op, in);
  }

  MDOPS_IMPLEMENT(HybridOps, hybrid_potential_pack, hybrid_potential)
};

}  // namespace mdops
