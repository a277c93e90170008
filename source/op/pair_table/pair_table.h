// Energies of pairs by their distance from a table, and the weights by which a table is blended with another
// model.
//
//   t_i = 1/2 sum_j u(r_ij),   u of each pair of types a cubic in x = (r - first)/step - k in interval k,
//         0 beyond the cutoff or the table, NaN below the table
//   c_i = 1 - 10 v^3 + 15 v^4 - 6 v^5,  v = (s_i - low)/(high - low) clamped to [0, 1]
//   s_i = sum_j w_j r_ij / sum_j w_j,   w_j = exp(-r_ij / decay): near the smallest distance
//
// An atom without neighbours has c = 0. All numbers are float64: energies of near pairs are large.
// Source: H. Wang et al., Appl. Phys. Lett. 114, 244101 (2019), with a quintic switch, as DeePMD-kit has it.
#pragma once

#include <cmath>

#include "common/math.h"
#include "common/pairs.h"

namespace mdops {

// The atoms and their list (ops.md).
struct ListArgs {
  const double *positions, *cell;
  const int32_t *batch, *types, *neighbors, *images, *counts;
  int64_t atoms, systems, list_width;
  int ntypes;
};

// Which neighbours make the weights c; low < high.
struct NearArgs {
  const bool* pair_mask;  // (ntypes, ntypes): pairs that are none
  double cutoff, decay, low, high;
};

struct TableArgs {
  const bool* pair_mask;
  const double* coefficients;  // (ntypes, ntypes, intervals, 4), that of x^3 first
  int64_t intervals;
  double first, step, cutoff;
};

// u and du/dr.
struct PairEnergy {
  double u, slope;
};

MDOPS_HD PairEnergy pair_energy(const TableArgs& table, int64_t pair_of_types, double r) {
  if (r >= table.cutoff || r >= table.first + static_cast<double>(table.intervals) * table.step)
    return {0, 0};
  const double inverse = 1 / table.step, x = (r - table.first) * inverse;
  if (!(x >= 0)) {
    const double nan = x * NAN;
    return {nan, nan};
  }
  const int64_t whole = static_cast<int64_t>(x), last = table.intervals - 1, k = whole < last ? whole : last;
  const double* c = table.coefficients + 4 * (pair_of_types * table.intervals + k);
  const double y = x - static_cast<double>(k);
  return {((c[0] * y + c[1]) * y + c[2]) * y + c[3], ((3 * c[0] * y + 2 * c[1]) * y + c[2]) * inverse};
}

// The sums of c's mean distance, with the least distance subtracted from all, so that not all weights vanish.
struct NearSums {
  double least, weights, weighted;

  // A neighbour kFar decay lengths farther than the nearest adds less than 1e-14 A: most are beyond.
  static constexpr double kFar = 36;
  MDOPS_HD double weight(double r, double decay) const {
    const double x = (r - least) / decay;
    return x > kFar ? 0 : exp(-x);
  }
  // A distance beyond which a neighbour adds nothing.
  MDOPS_HD double reach(double decay) const { return least + (kFar + 1) * decay; }
  MDOPS_HD double mean() const { return weighted / weights; }
};

// c and dc/ds.
struct NearWeight {
  double c, slope;
};

MDOPS_HD NearWeight weight_at(const NearArgs& near, double mean) {
  const double width = near.high - near.low;
  double v = (mean - near.low) / width;
  v = v < 0 ? 0 : v > 1 ? 1 : v;  // NaN stays
  const double rest = v * (1 - v);
  return {1 - v * v * v * (10 - v * (15 - 6 * v)), -30 * rest * rest / width};
}

// ds/dr of a neighbour of weight w, if all weights add up to 1; `inverse`: of the decay length.
MDOPS_HD double mean_slope(double w, double r, double mean, double inverse) {
  return w * (1 - (r - mean) * inverse);
}

// Where component k = 3 a + b of a symmetric matrix stands among xx, xy, xz, yy, yz and zz.
MDOPS_HD constexpr int symmetric_place(int k) {
  const int a = k / 3 < k % 3 ? k / 3 : k % 3, b = k / 3 < k % 3 ? k % 3 : k / 3;
  return a == 0 ? b : a + b + 1;
}

// A distance from which on c is 0, if the nearest neighbour's is known to float's rounding.
inline double surely_far(const NearArgs& near) {
  return near.high * (1 + 1e-6);
}

}  // namespace mdops
