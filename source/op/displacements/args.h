// Arguments of the ops of pair vectors; inputs.h fills them.
#pragma once

#include "displacements/displacements.h"

namespace mdops {

// Rows of neighbours, (rows, width), -1 if absent, of the atoms from `first` on, and the system of each atom,
// (N,).
struct PairRows {
  const int32_t *batch, *neighbors;
  int64_t atoms, width, systems;
  int64_t first = 0, rows = atoms;
};

// Gradients by results of pair_forces: forces (N, 3), virials (S, 3, 3) and those of atoms (N, 3, 3).
struct PairForceGrads {
  const double *forces, *virial, *atom_virial;
};

}  // namespace mdops
