// The loops over atoms of the ops on pair tables. Nothing here knows PyTorch.
#pragma once

#include "pair_table/pair_table.h"
#include "spline_potential/cpu_loops.h"

namespace mdops {

// What there is to say of the neighbours within a cutoff, masked ones too.
struct NearReport {
  int32_t* within;  // (N, ntypes)
  double* nearest;  // (N,)
};

// c of the atoms [begin, end). Returns an atom with a neighbour that is not there, or -1.
int64_t near_weights(const ListArgs& list, const NearArgs& near, int64_t begin, int64_t end, double* weight,
                     const NearReport& report);

// c of one atom, whose list is good.
double atom_weight(const ListArgs& list, const NearArgs& near, int64_t i);

// With weights c_i (null: 1) and other energies e_i, forces and virials of  sum_i c_i t_i, or with `near`,
// from which the weights are, of  sum_i c_i (t_i - e_i)  with c_i fixed in the part of e_i: what the other
// model's own weighted forces leave. t_i is 0 where c_i is. With `near` nothing is reported, and atoms of
// weight 0 are not looked at.
struct TableTask {
  const double *weight, *other;  // (N,); null
  const NearArgs* near;          // null
};

int64_t table_energies(const ListArgs& list, const TableArgs& table, const TableTask& task, int64_t begin,
                       int64_t end, const NearReport& report, PotentialResults<double>& out);

// The same of the first `atoms` atoms, in threads. `nearest` and `within` of the results are the report's.
void near_step(const Op& op, const ListArgs& list, const NearArgs& near, int64_t atoms, double* weight,
               const NearReport& report);
void table_step(const Op& op, const ListArgs& list, const TableArgs& table, const TableTask& task,
                const StepResults<double>& results);

}  // namespace mdops
