// Spline moments  A_t[b][a] = sum_{j of type t} phi_b(s_j) R_j[a]  (mathematics.md), their gradient, and
// the directional derivatives of both. Gated moments have w R in the place of R.
#pragma once

#include "common/isa.h"
#include "env_mat/env_mat.h"
#include "spline_moment/places.h"
#include "spline_moment/spline.h"

namespace mdops {

// The moments to which a loop over neighbours adds: plain ones, only gated ones, or gated ones of each type
// after plain ones of all types together.
enum class Gate { none, alone, beside };

// The arguments shared by the four kernels, all contiguous (ops.md).
template <class T>
struct MomentArgs {
  const T* displacements;  // (N, width, 3)
  const int32_t* counts;   // (N, ntypes)
  const int32_t* types;    // (N,)
  const T* mean;           // (ntypes,)
  const T* std;            // (ntypes, 2)
  Places places;           // sel, zeroed and padding in the forward kernel alone
  Cutoff<T> cutoff;
  SplineGrid<T> grid;
  int64_t width;
  int ntypes;
  bool radial, gated;

  MDOPS_HD Normalisation<T> normalisation(int type) const {
    return normalised(mean[type], std[2 * type], std[2 * type + 1]);
  }
  MDOPS_HD int basis() const { return grid.intervals + 5; }
  MDOPS_HD int columns() const { return radial ? 1 : 4; }
};

// Adds several neighbours at one s, each with R = (row, 0, 0, 0), with the total `sum`, to the moments that
// begin at the place's interval.
template <int Columns, class T>
MDOPS_HD void add_alike(T t, T sum, T* moments) {
  T value[kSplineSupport];
  spline_values(t, value);
  for (int m = 0; m < kSplineSupport; ++m) moments[Columns * m] += value[m] * sum;
}

// The padded slots of one type: `slots` neighbours at s = 0, each R = (shift, 0, 0, 0). Gated they are zero.
template <int Columns, class T>
MDOPS_HD void add_padding(const Normalisation<T>& norm, T slots, T* moments) {
  add_alike<Columns>(T(0), norm.shift * slots, moments);
}

// Each kernel does the atoms [begin, end). `moments` and its gradient are (N, ntypes, basis, columns).
MDOPS_DECLARE_KERNELS(void moment_forward(const MomentArgs<T>& args, int64_t begin, int64_t end, T* moments,
                                          int32_t* within, T* nearest))
MDOPS_DECLARE_KERNELS(void moment_jvp(const MomentArgs<T>& args, const T* tangent, int64_t begin, int64_t end,
                                      T* moments))
// The gradient, or the Hessian product along `tangent` where that is not null.
MDOPS_DECLARE_KERNELS(void moment_pull(const MomentArgs<T>& args, const T* tangent, const T* grad,
                                       int64_t begin, int64_t end, T* pair_grad))

}  // namespace mdops
