// The inference step of a model with several descriptors of sums side by side, and one fitting net on the
// features of all of them and on further inputs, whose gradient is a result for their maker.
//
//   e_i = scale net(D_1, D_2, ..., extra_i) + shift;   forces and virial of  sum_i weight_i (1 - c_i) e_i
//
// A part has the formulas of spline_potential.h, a cutoff, places, masks and tables of its own. c_i, 0 unless
// wanted, blends atoms with a pair table (pair_table.h). The nearest neighbours, which the step finds, show
// which atoms have any.
#pragma once

#include "spline_potential/groups.h"

namespace mdops {

constexpr int kMostParts = 32;

struct ListArgs;
struct NearArgs;

// Which neighbours make c, and the nearest distance from which on it is 0.
struct NearLook {
  const ListArgs* list;
  const NearArgs* near;  // null: c is not wanted
  double far;
};

// The net's first matrix has a row for each feature of all parts in the order of groups.h, with the weights
// of equal ones added, and then one for each further input.
inline int64_t feature_rows(const FittingShape& part) {
  return part.head_rows() + static_cast<int64_t>(part.width - part.axis) * part.axis;
}

template <class T>
struct HybridArgs {
  const PotentialArgs<T>* parts;  // of the same atoms and list; their nets are widths and axes alone
  int count;
  int widest;            // the part of the longest cutoff
  NetShape net;          // `features`: the rows of all parts
  const double* weight;  // (N,); null: 1
  NearLook look{};

  const PotentialArgs<T>& first() const { return parts[0]; }
};

template <class T>
struct HybridResults {
  PotentialResults<T> sums;  // without `within`
  int32_t* within;           // (N, count, ntypes)
  T* grad_extra;             // (N, extra): of the sum that forces are of
  double* near_weight;       // (N,): c, zero for virtual atoms at entry; null
};

// Elements of the scratch memory one thread needs.
MDOPS_DECLARE_KERNELS(int64_t hybrid_scratch_size(const HybridArgs<T>& args))
// The atoms `ids`, all of the net with these layers.
MDOPS_DECLARE_KERNELS(void hybrid_potential(const HybridArgs<T>& args, const DenseLayer<T>* layers,
                                            const int32_t* ids, int64_t count, T* scratch,
                                            HybridResults<T>& out))

}  // namespace mdops
