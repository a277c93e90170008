// What the ops over whole models share on the CPU: arguments from tensors, and tensors of results.
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
  Tensor energy, forces, virial, within, nearest, atom_virial;

  explicit Answer(const PotentialInputs& in)
      : energy(zeros({in.atoms}, ScalarType::Double)),
        forces(empty({in.atoms, 3}, ScalarType::Double)),
        virial(zeros({in.systems, 3, 3}, ScalarType::Double)),
        within(zeros({in.atoms, in.ntypes}, ScalarType::Int)),
        nearest(empty({in.atoms}, in.dtype)),
        atom_virial(empty({in.atom_virial ? in.atoms : 0, 3, 3}, ScalarType::Double)),
        asked_(in.atom_virial) {}

  template <class T>
  StepResults<T> results() {
    return {energy.size(0),
            data_of(energy),
            data_of(within),
            data_of(nearest),
            data_of(forces),
            data_of(virial),
            data_of(asked_ ? &atom_virial : nullptr)};
  }

 private:
  bool asked_;  // for atomic virials
};

}  // namespace mdops
