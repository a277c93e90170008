#include "displacements/cpu_loops.h"
#include "displacements/inputs.h"

namespace mdops {

namespace {

Tensor displacements(const Tensor& positions_, const Tensor& cell_, const Tensor& batch_,
                     const Tensor& neighbors_, const Tensor& images_, ScalarType dtype) {
  constexpr const char* op = "displacements";
  const Tensor cell = input(op, "cell", cell_, ScalarType::Double, {kAny, 3, 3});
  const PairList pairs(op, batch_, neighbors_, cell.size(0));
  const Tensor images = input(op, "images", images_, ScalarType::Int, {pairs.atoms, pairs.width});
  const Tensor positions = input(op, "positions", positions_, ScalarType::Double, {pairs.atoms, 3});
  Tensor result = empty({pairs.atoms, pairs.width, 3}, dtype);
  dispatch_float(op, dtype, [&](auto zero) {
    write_displacements(pair_rows(pairs, cell.size(0)), images.const_data_ptr<int32_t>(),
                        positions.const_data_ptr<double>(), cell.const_data_ptr<double>(),
                        result.mutable_data_ptr<decltype(zero)>());
  });
  return result;
}

std::tuple<Tensor, Tensor> displacements_backward(const Tensor& grad_, const Tensor& batch_,
                                                  const Tensor& neighbors_, const Tensor& images_,
                                                  int64_t num_systems) {
  constexpr const char* op = "displacements_backward";
  const PairList pairs(op, batch_, neighbors_, num_systems);
  const Tensor images = input(op, "images", images_, ScalarType::Int, {pairs.atoms, pairs.width});
  const Tensor grad = float_input(op, "grad", grad_, {pairs.atoms, pairs.width, 3});
  Tensor grad_positions = zeros({pairs.atoms, 3}, ScalarType::Double);
  Tensor grad_cell = zeros({num_systems, 3, 3}, ScalarType::Double);
  dispatch_float(op, grad.scalar_type(), [&](auto zero) {
    sum_displacement_grads(pair_rows(pairs, num_systems), images.const_data_ptr<int32_t>(),
                           grad.const_data_ptr<decltype(zero)>(), grad_positions.mutable_data_ptr<double>(),
                           grad_cell.mutable_data_ptr<double>());
  });
  return {grad_positions, grad_cell};
}

std::tuple<Tensor, Tensor, Tensor> pair_forces(const Tensor& grad_, const Tensor& displacements_,
                                               const Tensor& batch_, const Tensor& neighbors_,
                                               int64_t num_systems, bool of_atoms) {
  constexpr const char* op = "pair_forces";
  const PairList pairs(op, batch_, neighbors_, num_systems);
  const Tensor grad = float_input(op, "grad", grad_, {pairs.atoms, pairs.width, 3});
  const Tensor d =
      input(op, "displacements", displacements_, grad.scalar_type(), {pairs.atoms, pairs.width, 3});
  Tensor forces = zeros({pairs.atoms, 3}, ScalarType::Double);
  Tensor virial = zeros({num_systems, 3, 3}, ScalarType::Double);
  Tensor atom_virial = zeros({of_atoms ? pairs.atoms : 0, 3, 3}, ScalarType::Double);
  dispatch_float(op, grad.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    sum_pair_forces(pair_rows(pairs, num_systems), grad.const_data_ptr<T>(), d.const_data_ptr<T>(),
                    forces.mutable_data_ptr<double>(), virial.mutable_data_ptr<double>(),
                    of_atoms ? atom_virial.mutable_data_ptr<double>() : nullptr);
  });
  return {forces, virial, atom_virial};
}

std::tuple<Tensor, Tensor> pair_forces_backward(const Tensor& grad_forces_, const Tensor& grad_virial_,
                                                const Tensor& grad_atom_virial_, const Tensor& grad_,
                                                const Tensor& displacements_, const Tensor& batch_,
                                                const Tensor& neighbors_) {
  const PairForcesBackward in("pair_forces_backward", grad_forces_, grad_virial_, grad_atom_virial_, grad_,
                              displacements_, batch_, neighbors_);
  const PairList& pairs = in.pairs;
  const ScalarType dtype = in.grad.scalar_type();
  Tensor grad_grad = zeros({pairs.atoms, pairs.width, 3}, dtype);
  Tensor grad_displacements = zeros({pairs.atoms, pairs.width, 3}, dtype);
  dispatch_float("pair_forces_backward", dtype, [&](auto zero) {
    using T = decltype(zero);
    write_pair_force_grads(in.rows(), in.of_results(), in.grad.const_data_ptr<T>(),
                           in.displacements.const_data_ptr<T>(), grad_grad.mutable_data_ptr<T>(),
                           grad_displacements.mutable_data_ptr<T>());
  });
  return {grad_grad, grad_displacements};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("displacements", TORCH_BOX(&mdops::displacements));
  m.impl("displacements_backward", TORCH_BOX(&mdops::displacements_backward));
  m.impl("pair_forces", TORCH_BOX(&mdops::pair_forces));
  m.impl("pair_forces_backward", TORCH_BOX(&mdops::pair_forces_backward));
}
