// The features D = T^T T_< of DeePMD-kit's descriptors, T_< being the first M2 columns of T, and their
// gradient:
//
//   D[k][l] = sum_a T[a][k] T[a][l],  k < M, l < M2
//   dT[a][k] = sum_l G[k][l] T[a][l]  +  sum_k' G[k'][k] T[a][k']  (the latter for k < M2)
//
// After D a row of features may have further inputs of nets.
#pragma once

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

template <class T>
struct AxisArgs {
  int64_t atoms;
  int rows, width, axis;      // of T, and M2
  const T *t, *grad;          // (atoms, rows, width); (atoms, row_size()), null forward
  T* out;                     // (atoms, row_size()), or as t
  int64_t more = 0;           // numbers after D
  const T* behind = nullptr;  // (atoms, more), null in the backward pass

  MDOPS_HD int64_t t_size() const { return static_cast<int64_t>(rows) * width; }
  MDOPS_HD int64_t d_size() const { return static_cast<int64_t>(width) * axis; }
  MDOPS_HD int64_t row_size() const { return d_size() + more; }
};

// For one atom: D[k][l].
template <class T>
MDOPS_HD T axis_feature(const AxisArgs<T>& p, const T* t, int k, int l) {
  T sum = 0;
  for (int a = 0; a < p.rows; ++a) sum += t[a * p.width + k] * t[a * p.width + l];
  return sum;
}

// The two sums of dT[a][k]: over row k of G, with rows `stride` numbers apart; and over its column k, every
// `step`-th row from `first` on.
template <class T>
MDOPS_HD T axis_row_gradient(const AxisArgs<T>& p, const T* t, const T* g, int stride, int a, int k) {
  T sum = 0;
  for (int l = 0; l < p.axis; ++l) sum += g[k * stride + l] * t[a * p.width + l];
  return sum;
}
template <class T>
MDOPS_HD T axis_column_gradient(const AxisArgs<T>& p, const T* t, const T* g, int stride, int a, int k,
                                int first, int step) {
  T sum = 0;
  for (int row = first; row < p.width; row += step) sum += g[row * stride + k] * t[a * p.width + row];
  return sum;
}

// The CPU kernels, for atoms [begin, end).
MDOPS_DECLARE_KERNELS(void axis_features(const AxisArgs<T>& args, int64_t begin, int64_t end))
MDOPS_DECLARE_KERNELS(void axis_gradients(const AxisArgs<T>& args, int64_t begin, int64_t end))

}  // namespace mdops
