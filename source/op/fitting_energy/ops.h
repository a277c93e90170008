// The op on a packed fitting net.
#pragma once

#include "common/bind.h"
#include "hybrid_potential/shape.h"
#include "spline_potential/inputs.h"

namespace mdops {

// A packed fitting net for given rows of features, one per atom, like further inputs of `hybrid_potential`
// without any descriptor.
struct FittingInputs {
  Tensor features, types, nets, weight, scale, shift;
  ScalarType dtype;
  int64_t atoms, inputs, ntypes, net_count;
  NetShape net;

  const double* weights() const { return weight.size(0) ? weight.const_data_ptr<double>() : nullptr; }

  // The arguments of a step without descriptors.
  template <class T, class Size>
  void fill(StepInputs<T, Size>& args) const {
    args.types = data_of(types), args.extra = data_of(features);
    args.scale = data_of(scale), args.shift = data_of(shift);
    args.atoms = static_cast<Size>(atoms), args.systems = 1;
    args.ntypes = static_cast<int>(ntypes), args.nets = static_cast<int>(net_count);
  }
};

template <class Device>
struct FittingOps {
  static FittingInputs arguments(Checked<Device>& in, Input features, Input types, Input nets, Input weight,
                                 Input scale, Input shift, const std::vector<int64_t>& neurons,
                                 const std::vector<int64_t>& residual, int64_t activation, double threshold) {
    const auto& op = in.op;
    FittingInputs a{};
    a.features = float_input(op, "features", features, {kAny, kAny});
    a.dtype = features.scalar_type(), a.atoms = features.size(0), a.inputs = features.size(1);
    const std::string refusal = shape_refusal(1, 0, neurons, a.inputs);
    if (!refusal.empty()) fail(op, refusal);
    if (a.inputs == 0) fail(op, "argument `features` has no columns");
    FittingShape layers = fitting_shape(op, 1, 0, neurons, 0);
    set_layers(op, residual, activation, threshold, layers);
    if (layers.residual[0]) fail(op, "the first layer of a packed net cannot add its input");
    a.net = net_behind({}, layers, a.inputs);
    a.types = input(op, "types", types, ScalarType::Int, {a.atoms});
    a.nets = Device::placed(input(op, "nets", nets, a.dtype, {kAny, kAny}));
    a.shift = input(op, "shift", shift, ScalarType::Double, {kAny});
    a.ntypes = a.shift.size(0), a.net_count = a.nets.size(0);
    if (a.net_count < 1 || (a.net_count != 1 && a.net_count != a.ntypes))
      fail(op, "argument `nets` has ", a.net_count, " nets, expected 1 for all types, or ", a.ntypes);
    a.scale = input(op, "scale", scale, ScalarType::Double, {a.net_count});
    a.weight = input(op, "weight", weight, ScalarType::Double, {weight.size(0) ? a.atoms : 0});
    check_range(op, "types", a.types, -1, a.ntypes);
    return a;
  }

  static Outputs<2> fitting_energy(Checked<Device>& in, FittingInputs& a) {
    Tensor energy = Device::summed(in.op, {a.atoms}, ScalarType::Double);
    Tensor gradient = Device::summed(in.op, {a.atoms, a.inputs}, a.dtype);
    run_fitting(in.op, a, energy, gradient);
    return {energy, gradient};
  }

  MDOPS_IMPLEMENT(FittingOps, fitting_energy)
};

}  // namespace mdops
