// The steps of the ops on pair tables on the CPU: the work of threads. Without PyTorch.
#pragma once

#include "pair_table/cpu_kernel.h"
#include "spline_potential/cpu_loops.h"

namespace mdops {

// c of the first `atoms` atoms.
void near_step(const Op& op, const ListArgs& list, const NearArgs& near, int64_t atoms, double* weight,
               const NearReport& report);

// t of atoms, 0 where the weight is, and the sums of  sum_i weight_i t_i  (null: 1). `nearest` and `within`
// of the results are the report's.
void table_step(const Op& op, const ListArgs& list, const TableArgs& table, const double* weight,
                const StepResults<double>& results);

// Another model's energies, and forces and virials of  sum_i (1 - c_i) e_i  with fixed weights.
struct BlendedSums {
  double *energy, *forces, *virial;  // (N,), (N, 3), (S, 3, 3)
  double* atom_virial;               // (N, 3, 3); null: not wanted
};

// Turns them into the blend's,  (1 - c_i) e_i + c_i t_i,  for the first `atoms` atoms. Those with c = 0 stay
// unread.
void blend_step(const Op& op, const ListArgs& list, const TableArgs& table, const NearArgs& near,
                const double* c, int64_t atoms, const BlendedSums& sums);

}  // namespace mdops
