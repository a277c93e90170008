#include "fitting_energy/inputs.h"
#include "hybrid_potential/cpu_loops.h"

namespace mdops {

namespace {

std::tuple<Tensor, Tensor> fitting_energy(const Tensor& features, const Tensor& types, const Tensor& nets,
                                          const Tensor& weight, const Tensor& scale, const Tensor& shift,
                                          std::vector<int64_t> neurons, std::vector<int64_t> residual,
                                          int64_t activation, double threshold) {
  const Op op("fitting_energy");
  const FittingInputs in(op, features, types, nets, weight, scale, shift, neurons, residual, activation,
                         threshold);
  check_packed(op, in.nets, net_size(in.net));
  Tensor energy = zeros({in.atoms}, ScalarType::Double), gradient = zeros({in.atoms, in.inputs}, in.dtype);
  // What a step has besides, and nobody asks for here.
  std::vector<double> forces(3 * in.atoms), virial(9);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    PotentialArgs<T> none{};
    in.fill(none);
    std::vector<T> nearest(in.atoms);
    const HybridArgs<T> args{&none, 0, 0, in.net, in.weights()};
    const StepResults<T> results{
        in.atoms, energy.mutable_data_ptr<double>(), nullptr, nearest.data(), forces.data(), virial.data(),
        nullptr};
    hybrid_step(op, args, in.nets.const_data_ptr<T>(), results, nullptr, gradient.mutable_data_ptr<T>());
  });
  return {energy, gradient};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("fitting_energy", TORCH_BOX(&mdops::fitting_energy));
}
