// The ops on pair vectors and what is summed over pairs.
#pragma once

#include "common/bind.h"
#include "displacements/inputs.h"

namespace mdops {

// The ops whose first tensor does not determine the type.
template <class Device>
struct DisplacementOps {
  static Tensor displacements(Checked<Device>& in, Input positions, Input cell, Input batch, Input neighbors,
                              Input images, ScalarType dtype) {
    return dispatch_float(in.op, dtype, [&]<class T>(T) {
      const double *of_atoms, *of_cell;
      const int32_t* of_pairs;
      in.take(of_cell, "cell", cell, {kAny, 3, 3});
      const PairRows rows = take_pairs(in, batch, neighbors, cell.size(0));
      in.take(of_pairs, "images", images, {rows.atoms, rows.width});
      in.take(of_atoms, "positions", positions, {rows.atoms, 3});
      T* to;
      Tensor result = in.result(to, {rows.atoms, rows.width, 3});
      run_displacements(in.op, of_atoms, of_cell, rows, of_pairs, to);
      return result;
    });
  }

  static Outputs<2> pair_forces_backward(Checked<Device>& in, Input grad_forces, Input grad_virial,
                                         Input grad_atom_virial, Input grad, Input displacements, Input batch,
                                         Input neighbors) {
    return in.for_type_of(grad, [&]<class T>(T) -> Outputs<2> {
      PairForceGrads by;
      in.take(by.virial, "grad_virial", grad_virial, {kAny, 3, 3});
      const PairRows rows = take_pairs(in, batch, neighbors, grad_virial.size(0));
      in.take(by.forces, "grad_forces", grad_forces, {rows.atoms, 3});
      in.take(by.atom_virial, "grad_atom_virial", grad_atom_virial, {rows.atoms, 3, 3});
      const T *of_vectors, *d;
      in.take(of_vectors, "grad", grad, {rows.atoms, rows.width, 3});
      in.take(d, "displacements", displacements, {rows.atoms, rows.width, 3});
      T *by_grad, *by_d;
      Tensor grad_grad = in.sums(by_grad, {rows.atoms, rows.width, 3});
      Tensor grad_displacements = in.sums(by_d, {rows.atoms, rows.width, 3});
      write_pair_force_grads(in.op, rows, by, of_vectors, d, by_grad, by_d);
      return {grad_grad, grad_displacements};
    });
  }

  MDOPS_IMPLEMENT(DisplacementOps, displacements, pair_forces_backward)
};

template <class Device, class T>
struct PairForceOps {
  static Outputs<2> displacements_backward(Checked<Device>& in, Input grad, Input batch, Input neighbors,
                                           Input images, int64_t num_systems) {
    const PairRows rows = take_pairs(in, batch, neighbors, num_systems);
    const int32_t* of_pairs;
    in.take(of_pairs, "images", images, {rows.atoms, rows.width});
    const T* of_vectors;
    in.take(of_vectors, "grad", grad, {rows.atoms, rows.width, 3});
    double *positions, *cell;
    Tensor grad_positions = in.sums(positions, {rows.atoms, 3});
    Tensor grad_cell = in.sums(cell, {num_systems, 3, 3});
    sum_displacement_grads(in.op, rows, of_pairs, of_vectors, positions, cell);
    return {grad_positions, grad_cell};
  }

  static Outputs<3> pair_forces(Checked<Device>& in, Input grad, Input displacements, Input batch,
                                Input neighbors, int64_t num_systems, bool of_atoms) {
    const PairRows rows = take_pairs(in, batch, neighbors, num_systems);
    const T *of_vectors, *d;
    in.take(of_vectors, "grad", grad, {rows.atoms, rows.width, 3});
    in.take(d, "displacements", displacements, {rows.atoms, rows.width, 3});
    double *to_forces, *to_virial, *to_atoms;
    Tensor forces = in.sums(to_forces, {rows.atoms, 3}), virial = in.sums(to_virial, {num_systems, 3, 3});
    Tensor atom_virial = in.sums(to_atoms, {of_atoms ? rows.atoms : 0, 3, 3});
    sum_pair_forces(in.op, rows, of_vectors, d, to_forces, to_virial, of_atoms ? to_atoms : nullptr);
    return {forces, virial, atom_virial};
  }

  MDOPS_IMPLEMENT_FLOATS(PairForceOps, displacements_backward, pair_forces)
};

}  // namespace mdops
