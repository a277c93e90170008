// The ops on a whole step of several descriptors, their arguments checked at entry. What a device does are
// overloads on the call of an op: `hybrid_answer` and `packed_net`.
#pragma once

#include <tuple>

#include "hybrid_potential/inputs.h"

namespace mdops {

using HybridOutputs = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <class Device>
struct HybridOps {
  static Tensor hybrid_potential_pack(Tensors weights, Tensors biases, Tensors timesteps, Integers width,
                                      Integers axis) {
    constexpr const char* name = "hybrid_potential_pack";
    if (weights.empty())
      fail(name, "expected weights, biases and timesteps of two layers or more, as many of each");
    const auto op = Device::make(name, "weights", weights[0]);
    return packed_net(
        op, HybridNetInputs(op, std::move(weights), std::move(biases), std::move(timesteps), width, axis));
  }

  static HybridOutputs hybrid_potential(
      const Tensor& positions, const Tensor& cell, const Tensor& batch, const Tensor& types,
      const Tensor& neighbors, const Tensor& images, const Tensor& counts, Tensors mean, Tensors std,
      Tensors pair_mask, Tensors zeroed, Tensors sel, Tensors padding, Tensors absent, Tensors tables,
      const Tensor& nets, const Tensor& extra, const Tensor& weight, const Tensor& scale, const Tensor& shift,
      Numbers cutoff, Numbers cutoff_smooth, Numbers protection, Numbers s_max, Numbers grading,
      Integers width, Integers axis, Integers gated, Integers neurons, Integers residual, int64_t activation,
      double threshold, const Tensor& near_mask, double near_cutoff, double decay, double low, double high,
      const Tensor& table_mask, const Tensor& coefficients, double table_first, double table_step,
      double table_cutoff, bool atom_virial) {
    const auto op = Device::make("hybrid_potential", "positions", positions);
    return hybrid_answer(
        op,
        read_hybrid(op, positions, cell, batch, types, neighbors, images, counts, mean, std, pair_mask,
                    zeroed, sel, padding, absent, tables, nets, extra, weight, scale, shift, cutoff,
                    cutoff_smooth, protection, s_max, grading, width, axis, gated, neurons, residual,
                    activation, threshold, near_mask, near_cutoff, decay, low, high, table_mask, coefficients,
                    table_first, table_step, table_cutoff),
        atom_virial);
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("hybrid_potential_pack", TORCH_BOX(&HybridOps::hybrid_potential_pack));
    m.impl("hybrid_potential", TORCH_BOX(&HybridOps::hybrid_potential));
  }
};

}  // namespace mdops
