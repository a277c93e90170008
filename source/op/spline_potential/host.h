// What the ops over whole models share on the CPU: arguments from tensors, and results as tensors.
#pragma once

#include "spline_potential/cpu_loops.h"
#include "spline_potential/inputs.h"

namespace mdops {

template <class T>
PotentialArgs<T> arguments(const PotentialInputs& in, const double* four_columns) {
  PotentialArgs<T> args{};
  fill(in, four_columns, args);
  args.net = in.net;
  return args;
}

// The results of a call on the CPU.
struct Answer {
  const PotentialInputs& in;
  Tensor energy = zeros({in.atoms}, ScalarType::Double);
  Tensor forces = empty({in.atoms, 3}, ScalarType::Double);
  Tensor virial = zeros({in.systems, 3, 3}, ScalarType::Double);
  Tensor within = zeros({in.atoms, in.ntypes}, ScalarType::Int);
  Tensor nearest = empty({in.atoms}, in.dtype);
  Tensor atom_virial = empty({in.atom_virial ? in.atoms : 0, 3, 3}, ScalarType::Double);

  template <class T>
  StepResults<T> results() {
    StepResults<T> a{};
    a.centers = energy.size(0), a.energy = data_of(energy), a.within = data_of(within);
    a.nearest = data_of(nearest), a.forces = data_of(forces), a.virial = data_of(virial);
    a.atom_virial = data_of(in.atom_virial ? &atom_virial : nullptr);
    return a;
  }
};

}  // namespace mdops
