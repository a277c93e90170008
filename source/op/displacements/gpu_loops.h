// GPU launches of the ops of pair vectors and pair forces, for PyTorch and for callers without PyTorch.
#pragma once

#include "common/gpu.h"
#include "displacements/args.h"

namespace mdops {

// Pair vectors (rows, width, 3), zero without a neighbour; images (rows, width), cells (S, 3, 3).
template <class T>
void run_displacements(const Gpu& gpu, const double* positions, const double* cell, const PairRows& rows,
                       const int32_t* images, T* out);

// From the gradients by pair vectors: forces (N, 3), virials (S, 3, 3) and those of atoms (N, 3, 3), null if
// not requested. `memory` on the GPU has `pair_forces_bytes` bytes.
template <class T>
int64_t pair_forces_bytes(const Gpu& gpu, const PairRows& rows, bool of_atoms);
template <class T>
void run_pair_forces(const Gpu& gpu, const PairRows& rows, const T* grad, const T* displacements,
                     void* memory, double* forces, double* virial, double* of_atoms);

}  // namespace mdops
