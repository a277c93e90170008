// What the ops of pair vectors and pair forces launch on a GPU, for PyTorch and for callers that do not know
// PyTorch.
#pragma once

#include "common/gpu.h"
#include "displacements/args.h"

namespace mdops {

// Pair vectors (rows, width, 3), zero where there is no neighbour; images (rows, width), cells (S, 3, 3).
template <class T>
void run_displacements(const Gpu& gpu, const double* positions, const double* cell, const PairRows& rows,
                       const int32_t* images, T* out);

// From the gradients of the pair vectors forces (N, 3), virials (S, 3, 3) and those of atoms (N, 3, 3).
// `memory` of the GPU has as many bytes as `pair_forces_bytes` says.
template <class T>
int64_t pair_forces_bytes(const Gpu& gpu, const PairRows& rows);
template <class T>
void run_pair_forces(const Gpu& gpu, const PairRows& rows, const T* grad, const T* displacements,
                     void* memory, double* forces, double* virial, double* of_atoms);

}  // namespace mdops
