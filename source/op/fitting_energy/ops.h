// The op on a packed fitting net.
#pragma once

#include "hybrid_potential/shape.h"
#include "spline_potential/inputs.h"

namespace mdops {

// A packed fitting net for rows of features that are there, one an atom, as `hybrid_potential` has it for
// further inputs without any descriptor.
struct FittingInputs {
  Tensor features, types, nets, weight, scale, shift;
  ScalarType dtype = features.scalar_type();
  int64_t atoms = features.size(0), inputs = features.size(1), ntypes, net_count;
  NetShape net;

  FittingInputs(const Op& op, const Tensor& features_, const Tensor& types_, const Tensor& nets_,
                const Tensor& weight_, const Tensor& scale_, const Tensor& shift_,
                const std::vector<int64_t>& neurons, const std::vector<int64_t>& residual, int64_t activation,
                double threshold)
      : features(float_input(op, "features", features_, {kAny, kAny})) {
    const std::string refusal = shape_refusal(1, 0, neurons, inputs);
    if (!refusal.empty()) fail(op, refusal);
    if (inputs == 0) fail(op, "argument `features` has no columns");
    FittingShape layers = fitting_shape(op, 1, 0, neurons, 0);
    set_layers(op, residual, activation, threshold, layers);
    if (layers.residual[0]) fail(op, "the first layer of a packed net cannot add its input");
    net = net_behind({}, layers, inputs);
    types = input(op, "types", types_, ScalarType::Int, {atoms});
    nets = input(op, "nets", nets_, dtype, {kAny, kAny});
    shift = input(op, "shift", shift_, ScalarType::Double, {kAny});
    ntypes = shift.size(0), net_count = nets.size(0);
    if (net_count < 1 || (net_count != 1 && net_count != ntypes))
      fail(op, "argument `nets` has ", net_count, " nets, expected 1 for all types, or ", ntypes);
    scale = input(op, "scale", scale_, ScalarType::Double, {net_count});
    weight = input(op, "weight", weight_, ScalarType::Double, {weight_.size(0) ? atoms : 0});
    check_range(op, "types", types, -1, ntypes);
  }

  const double* weights() const { return weight.size(0) ? weight.const_data_ptr<double>() : nullptr; }

  // What a step of no descriptor takes.
  template <class T, class Size>
  void fill(StepInputs<T, Size>& args) const {
    args.types = data_of(types), args.extra = data_of(features);
    args.scale = data_of(scale), args.shift = data_of(shift);
    args.atoms = static_cast<Size>(atoms), args.systems = 1;
    args.ntypes = static_cast<int>(ntypes), args.nets = static_cast<int>(net_count);
  }
};

template <class Device>
Outputs<2> fitting_energy(const Tensor& features, const Tensor& types, const Tensor& nets,
                          const Tensor& weight, const Tensor& scale, const Tensor& shift,
                          std::vector<int64_t> neurons, std::vector<int64_t> residual, int64_t activation,
                          double threshold) {
  const auto op = Device::make("fitting_energy", "features", features);
  FittingInputs in(op, features, types, nets, weight, scale, shift, neurons, residual, activation, threshold);
  in.nets = Device::placed(in.nets);
  Tensor energy = Device::summed(op, {in.atoms}, ScalarType::Double);
  Tensor gradient = Device::summed(op, {in.atoms, in.inputs}, in.dtype);
  run_fitting(op, in, energy, gradient);
  return {energy, gradient};
}

}  // namespace mdops
