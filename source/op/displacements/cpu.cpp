#include "displacements/cpu_loops.h"
#include "displacements/ops.h"

namespace mdops {

template <class T>
static void run_displacements(const Op&, const double* positions, const double* cell, const PairRows& rows,
                              const int32_t* images, T* out) {
  write_displacements(rows, images, positions, cell, out);
}

template <class T>
static void sum_displacement_grads(const Op&, const PairRows& rows, const int32_t* images, const T* grad,
                                   double* positions, double* cell) {
  sum_displacement_grads(rows, images, grad, positions, cell);
}

template <class T>
static void sum_pair_forces(const Op&, const PairRows& rows, const T* grad, const T* d, double* forces,
                            double* virial, double* atom_virial) {
  sum_pair_forces(rows, grad, d, forces, virial, atom_virial);
}

template <class T>
static void write_pair_force_grads(const Op&, const PairRows& rows, const PairForceGrads& by, const T* grad,
                                   const T* d, T* grad_grad, T* grad_d) {
  write_pair_force_grads(rows, by, grad, d, grad_grad, grad_d);
}

}  // namespace mdops

MDOPS_ON_CPU(DisplacementOps, PairForceOps)
