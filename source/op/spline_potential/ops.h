// The ops on a whole step of one descriptor. A device has `packed_net`, `potential_answer` and
// `device_refusal`.
#pragma once

#include "common/bind.h"
#include "spline_potential/inputs.h"

namespace mdops {

using PotentialOutputs = Outputs<6>;

template <class Device>
struct SplinePotentialOps {
  static constexpr auto arguments = take_step<Checked<Device>, Tensor, int64_t, double, std::string, bool>;

  static Tensor spline_potential_pack(Checked<Device>& in, Tensors weights, Tensors biases, Tensors timesteps,
                                      int64_t width, int64_t axis, std::string matmul) {
    const Matmul products = matmul_of(in.op, matmul);
    return packed_net(
        in.op, NetInputs(in.op, std::move(weights), std::move(biases), std::move(timesteps), width, axis),
        products);
  }

  static PotentialOutputs spline_potential(Checked<Device>& in, PotentialInputs& a) {
    return potential_answer(in.op, a);
  }

  static std::string spline_potential_why_not(Checked<Device>& in, Input like, int64_t tables,
                                              int64_t intervals, int64_t width, int64_t axis,
                                              std::vector<int64_t> neurons, int64_t extra) {
    const ScalarType dtype = float_input(in.op, "like", like, {kAny}).scalar_type();
    for (const std::string& refusal :
         {shape_refusal(width, axis, neurons, extra), rows_refusal(tables, intervals + 5)})
      if (!refusal.empty()) return refusal;
    return device_refusal(in.op, dtype, fitting_shape(in.op, width, axis, neurons, extra),
                          static_cast<int>(tables), static_cast<int>(tables * (intervals + 5)));
  }

  MDOPS_IMPLEMENT(SplinePotentialOps, spline_potential_pack, spline_potential, spline_potential_why_not)
};

}  // namespace mdops
