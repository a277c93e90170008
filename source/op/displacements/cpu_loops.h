// Pair vectors and sums over them on the CPU. Nothing here uses PyTorch. T is float or double; vectors and
// their gradients are (N, width, 3), sums start at zero.
#pragma once

#include "displacements/args.h"

namespace mdops {

template <class T>
void write_displacements(const PairRows& rows, const int32_t* images, const double* positions,
                         const double* cell, T* out);

template <class T>
void sum_displacement_grads(const PairRows& rows, const int32_t* images, const T* grad,
                            double* grad_positions, double* grad_cell);

// `atom_virial` null: not requested.
template <class T>
void sum_pair_forces(const PairRows& rows, const T* grad, const T* displacements, double* forces,
                     double* virial, double* atom_virial);

template <class T>
void write_pair_force_grads(const PairRows& rows, const PairForceGrads& of, const T* grad,
                            const T* displacements, T* grad_grad, T* grad_displacements);

}  // namespace mdops
