// The ops on pair vectors and what is summed over pairs.
#pragma once

#include "common/bind.h"
#include "displacements/inputs.h"

namespace mdops {

template <class Device>
struct DisplacementOps {
  static Tensor displacements(const Tensor& positions_, const Tensor& cell_, const Tensor& batch_,
                              const Tensor& neighbors_, const Tensor& images_, ScalarType dtype) {
    const auto op = Device::make("displacements", "positions", positions_);
    const Tensor cell = input(op, "cell", cell_, ScalarType::Double, {kAny, 3, 3});
    const PairList pairs(op, batch_, neighbors_, cell.size(0));
    const Tensor images = input(op, "images", images_, ScalarType::Int, {pairs.atoms, pairs.width});
    const Tensor positions = input(op, "positions", positions_, ScalarType::Double, {pairs.atoms, 3});
    Tensor result = empty(op, {pairs.atoms, pairs.width, 3}, dtype);
    dispatch_float(op, dtype, [&]<class T>(T) {
      run_displacements<T>(op, positions.const_data_ptr<double>(), cell.const_data_ptr<double>(),
                           pair_rows(pairs, cell.size(0)), data_of(images), data_of(result));
    });
    return result;
  }

  static Outputs<2> displacements_backward(const Tensor& grad_, const Tensor& batch_,
                                           const Tensor& neighbors_, const Tensor& images_,
                                           int64_t num_systems) {
    const auto op = Device::make("displacements_backward", "grad", grad_);
    const PairList pairs(op, batch_, neighbors_, num_systems);
    const Tensor images = input(op, "images", images_, ScalarType::Int, {pairs.atoms, pairs.width});
    const Tensor grad = float_input(op, "grad", grad_, {pairs.atoms, pairs.width, 3});
    Tensor grad_positions = Device::summed(op, {pairs.atoms, 3}, ScalarType::Double);
    Tensor grad_cell = Device::summed(op, {num_systems, 3, 3}, ScalarType::Double);
    dispatch_float(op, grad.scalar_type(), [&]<class T>(T) {
      sum_displacement_grads(op, pair_rows(pairs, num_systems), images.const_data_ptr<int32_t>(),
                             grad.const_data_ptr<T>(), grad_positions.mutable_data_ptr<double>(),
                             grad_cell.mutable_data_ptr<double>());
    });
    return {grad_positions, grad_cell};
  }

  static Outputs<3> pair_forces(const Tensor& grad_, const Tensor& displacements_, const Tensor& batch_,
                                const Tensor& neighbors_, int64_t num_systems, bool of_atoms) {
    const auto op = Device::make("pair_forces", "grad", grad_);
    const PairList pairs(op, batch_, neighbors_, num_systems);
    const Tensor grad = float_input(op, "grad", grad_, {pairs.atoms, pairs.width, 3});
    const Tensor d =
        input(op, "displacements", displacements_, grad.scalar_type(), {pairs.atoms, pairs.width, 3});
    Tensor forces = Device::summed(op, {pairs.atoms, 3}, ScalarType::Double);
    Tensor virial = Device::summed(op, {num_systems, 3, 3}, ScalarType::Double);
    Tensor atom_virial = Device::summed(op, {of_atoms ? pairs.atoms : 0, 3, 3}, ScalarType::Double);
    dispatch_float(op, grad.scalar_type(), [&]<class T>(T) {
      sum_pair_forces(op, pair_rows(pairs, num_systems), grad.const_data_ptr<T>(), d.const_data_ptr<T>(),
                      forces.mutable_data_ptr<double>(), virial.mutable_data_ptr<double>(),
                      of_atoms ? atom_virial.mutable_data_ptr<double>() : nullptr);
    });
    return {forces, virial, atom_virial};
  }

  static Outputs<2> pair_forces_backward(const Tensor& grad_forces_, const Tensor& grad_virial_,
                                         const Tensor& grad_atom_virial_, const Tensor& grad_,
                                         const Tensor& displacements_, const Tensor& batch_,
                                         const Tensor& neighbors_) {
    const auto op = Device::make("pair_forces_backward", "grad", grad_);
    const PairForcesBackward in(op, grad_forces_, grad_virial_, grad_atom_virial_, grad_, displacements_,
                                batch_, neighbors_);
    const PairList& pairs = in.pairs;
    const ScalarType dtype = in.grad.scalar_type();
    Tensor grad_grad = Device::summed(op, {pairs.atoms, pairs.width, 3}, dtype);
    Tensor grad_displacements = Device::summed(op, {pairs.atoms, pairs.width, 3}, dtype);
    dispatch_float(op, dtype, [&]<class T>(T) {
      write_pair_force_grads(op, in.rows(), in.of_results(), in.grad.const_data_ptr<T>(),
                             in.displacements.const_data_ptr<T>(), grad_grad.mutable_data_ptr<T>(),
                             grad_displacements.mutable_data_ptr<T>());
    });
    return {grad_grad, grad_displacements};
  }

  MDOPS_IMPLEMENT(DisplacementOps, displacements, displacements_backward, pair_forces, pair_forces_backward)
};

}  // namespace mdops
