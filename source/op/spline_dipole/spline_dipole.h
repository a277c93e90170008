// The step of a model of dipoles, for the C core: the descriptor and its net as in spline_potential.h, where
// the net's last layer, without an activation function, gives a number for each column of T:
//
//   mu_i = sum_m c_im T_im, of the last three rows of T;   U = -sum_i F_i . mu_i  in fields F,
//
// with U's forces and virial. If F_i is a force on the end of the dipole mu_i (a Wannier centroid), U's
// forces are its effect on the atoms.
#pragma once

#include "spline_potential/spline_potential.h"

namespace mdops {

// The arguments of `dipole`, which extend those it is called with.
template <class T>
struct DipoleArgs : PotentialArgs<T> {
  const bool* has_dipole;  // (ntypes,): the others have neither dipole nor net
  const double* field;     // (N, 3); null: no field, and no forces
  double* dipole;          // (N, 3), zero at entry for atoms that have none
};

// Elements of the scratch memory one thread needs.
MDOPS_DECLARE_KERNELS(int64_t dipole_scratch_size(const DipoleArgs<T>& args))
// The atoms `ids`, all of one net.
MDOPS_DECLARE_KERNELS(void dipole(const DipoleArgs<T>& args, const NetWeights<T>& weights, const int32_t* ids,
                                  int64_t count, T* scratch, PotentialResults<T>& out))

}  // namespace mdops
