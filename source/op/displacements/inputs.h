// Arguments that the CPU and the CUDA half check alike.
#pragma once

#include "common/pair_checks.h"
#include "displacements/args.h"

namespace mdops {

inline PairRows pair_rows(const PairList& pairs, int64_t systems) {
  return {data_of(pairs.batch), data_of(pairs.neighbors), pairs.atoms, pairs.width, systems};
}

// Those of pair_forces_backward, checked and contiguous.
struct PairForcesBackward {
  Tensor grad_virial;
  PairList pairs;
  Tensor grad_forces, grad_atom_virial, grad, displacements;

  PairForcesBackward(const Op& op, const Tensor& grad_forces_, const Tensor& grad_virial_,
                     const Tensor& grad_atom_virial_, const Tensor& grad_, const Tensor& displacements_,
                     const Tensor& batch, const Tensor& neighbors)
      : grad_virial(input(op, "grad_virial", grad_virial_, ScalarType::Double, {kAny, 3, 3})),
        pairs(op, batch, neighbors, grad_virial.size(0)),
        grad_forces(input(op, "grad_forces", grad_forces_, ScalarType::Double, {pairs.atoms, 3})),
        grad_atom_virial(
            input(op, "grad_atom_virial", grad_atom_virial_, ScalarType::Double, {pairs.atoms, 3, 3})),
        grad(float_input(op, "grad", grad_, {pairs.atoms, pairs.width, 3})),
        displacements(
            input(op, "displacements", displacements_, grad.scalar_type(), {pairs.atoms, pairs.width, 3})) {}

  PairRows rows() const { return pair_rows(pairs, grad_virial.size(0)); }

  PairForceGrads of_results() const {
    return {data_of(grad_forces), data_of(grad_virial), data_of(grad_atom_virial)};
  }
};

}  // namespace mdops
