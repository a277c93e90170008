// The kernels on pair tables, which work on a few atoms in one thread.
#pragma once

#include <initializer_list>

#include "common/isa.h"
#include "pair_table/pair_table.h"
#include "spline_potential/spline_potential.h"

namespace mdops {

// Results on the neighbours within a cutoff, masked ones too.
struct NearReport {
  int32_t* within;  // (N, ntypes), zero at entry
  double* nearest;  // (N,)
};

// Memory for one atom's neighbours: pair vectors, distances and their inverses, weights, gradients of an
// energy along the vectors, and whose they are.
struct NeighborRow {
  double *x, *y, *z, *r, *inverse, *w, *g;
  int32_t *atom, *type;
  int64_t size = 0;

  NeighborRow(void* memory, int64_t list_width) {
    double* of = static_cast<double*>(memory);
    for (double** column : {&x, &y, &z, &r, &inverse, &w, &g}) *column = of, of += list_width;
    atom = reinterpret_cast<int32_t*>(of), type = atom + list_width;
  }
  static int64_t bytes(int64_t list_width) {
    return list_width * static_cast<int64_t>(7 * sizeof(double) + 2 * sizeof(int32_t));
  }
};

// Each returns an atom with an invalid neighbour, or -1.

// c of the atoms [begin, end).
MDOPS_DECLARE_KERNEL(int64_t near_weights(const ListArgs& list, const NearArgs& near, int64_t begin,
                                          int64_t end, double* weight, const NearReport& report))
// t of the atoms `ids`, 0 if the weight is, with forces and virials of  sum_i weight_i t_i  (null:
// 1).
MDOPS_DECLARE_KERNEL(int64_t table_energies(const ListArgs& list, const TableArgs& table,
                                            const double* weight, const int32_t* ids, int64_t count,
                                            const NearReport& report, NeighborRow& row,
                                            PotentialResults<double>& out))
// For the atoms `ids`, replaces energies e by  (1 - c) e + c t;  adds to forces and virials the terms missing
// in those of sum_i (1 - c_i) e_i  with fixed weights.
MDOPS_DECLARE_KERNEL(int64_t blend_energies(const ListArgs& list, const TableArgs& table,
                                            const NearArgs& near, const double* c, const int32_t* ids,
                                            int64_t count, NeighborRow& row, PotentialResults<double>& out))
// c of one atom, NaN where its list is wrong.
MDOPS_DECLARE_KERNEL(double atom_weight(const ListArgs& list, const NearArgs& near, int64_t i))

}  // namespace mdops
