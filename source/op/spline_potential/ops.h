// The ops on a whole step of one descriptor. A device has `packed_net`, `potential_answer` and
// `device_refusal`.
#pragma once

#include "common/bind.h"
#include "spline_potential/inputs.h"

namespace mdops {

using PotentialOutputs = Outputs<6>;

struct StepTensors : StepInputsOf<Tensor> {
  using Given = Listed<StepInputsOf<Tensor>::Given, int64_t, double, std::string, bool>;
  using StepInputsOf<Tensor>::StepInputsOf;
};

template <class Device>
struct SplinePotentialOps {
  using Call = typename Device::Call;

  static Tensor spline_potential_pack(std::vector<Tensor> weights, std::vector<Tensor> biases,
                                      std::vector<Tensor> timesteps, int64_t width, int64_t axis,
                                      std::string matmul) {
    constexpr const char* name = "spline_potential_pack";
    if (weights.empty())
      fail(name, "expected weights, biases and timesteps of two layers or more, as many of each");
    const auto op = Device::make(name, "weights", weights[0]);
    const Matmul products = matmul_of(op, matmul);
    return packed_net(op,
                      NetInputs(op, std::move(weights), std::move(biases), std::move(timesteps), width, axis),
                      products);
  }

  static PotentialOutputs spline_potential(const Call& op, const StepTensors& in) {
    return potential_answer(op, in);
  }

  static std::string spline_potential_why_not(const Tensor& like, int64_t tables, int64_t intervals,
                                              int64_t width, int64_t axis, std::vector<int64_t> neurons,
                                              int64_t extra) {
    const auto op = Device::make("spline_potential_why_not", "like", like);
    const ScalarType dtype = float_input(op, "like", like, {kAny}).scalar_type();
    for (const std::string& refusal :
         {shape_refusal(width, axis, neurons, extra), rows_refusal(tables, intervals + 5)})
      if (!refusal.empty()) return refusal;
    return device_refusal(op, dtype, fitting_shape(op, width, axis, neurons, extra), static_cast<int>(tables),
                          static_cast<int>(tables * (intervals + 5)));
  }

  MDOPS_IMPLEMENT(SplinePotentialOps, spline_potential_pack, spline_potential, spline_potential_why_not)
};

}  // namespace mdops
