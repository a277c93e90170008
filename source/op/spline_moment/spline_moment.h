// Spline moments  A_t[b][a] = sum_{j of type t} phi_b(s_j) R_j[a]  (docs/mathematics.md), their gradient, and
// the directional derivatives of both.
#pragma once

#include <cstdint>

#include "common/isa.h"
#include "env_mat/env_mat.h"
#include "spline_moment/spline.h"

namespace mdops {

// The arguments shared by the four kernels, all contiguous (docs/ops.md).
template <class T>
struct MomentArgs {
  const T* displacements;    // (N, width, 3)
  const int32_t* counts;     // (N, ntypes)
  const int32_t* types;      // (N,)
  const T* mean;             // (ntypes,)
  const T* std;              // (ntypes, 2)
  const uint8_t* pair_mask;  // (ntypes, ntypes)
  Cutoff<T> cutoff;
  SplineGrid<T> grid;
  int64_t width;
  int ntypes;
  bool radial;

  MDOPS_HD Normalisation<T> normalisation(int type) const {
    return {mean[type], T(1) / std[2 * type], T(1) / std[2 * type + 1]};
  }
  MDOPS_HD int basis() const { return grid.intervals + 5; }
  MDOPS_HD int columns() const { return radial ? 1 : 4; }
};

// The padded slots of one type: `slots` neighbours at s = 0, each R = (-mean/d0, 0, 0, 0). DeePMD-kit pads
// every atom's row to `sel`; their sum is added once. Negative when an atom has more neighbours than `sel`.
template <int Columns, class T>
MDOPS_HD void add_padding(const Normalisation<T>& norm, T slots, T* moments) {
  T value[kSplineSupport];
  spline_values(T(0), value);
  const T row = -norm.mean * norm.inv0 * slots;
  for (int m = 0; m < kSplineSupport; ++m) moments[Columns * m] += value[m] * row;
}

// Each kernel does the atoms [begin, end). `moments` and its gradient are (N, ntypes, basis, columns).
#define MDOPS_MOMENT_KERNELS(T)                                                                             \
  MDOPS_DECLARE_KERNEL(void moment_forward(const MomentArgs<T>& args, const int32_t* sel, int64_t begin,    \
                                           int64_t end, T* moments, int32_t* within, T* nearest))           \
  MDOPS_DECLARE_KERNEL(void moment_backward(const MomentArgs<T>& args, const T* grad, int64_t begin,        \
                                            int64_t end, T* pair_grad))                                     \
  MDOPS_DECLARE_KERNEL(                                                                                     \
      void moment_jvp(const MomentArgs<T>& args, const T* tangent, int64_t begin, int64_t end, T* moments)) \
  MDOPS_DECLARE_KERNEL(void moment_hvp(const MomentArgs<T>& args, const T* tangent, const T* grad,          \
                                       int64_t begin, int64_t end, T* pair_grad))
MDOPS_MOMENT_KERNELS(float)
MDOPS_MOMENT_KERNELS(double)

}  // namespace mdops
