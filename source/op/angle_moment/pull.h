// From the gradient by a neighbour's row R = (x, y, z) and switch w to that by its pair vector.
#pragma once

#include "env_mat/env_mat.h"

namespace mdops {

// `grad`: by x, y, z and w, the last only if `Gated`. `Second`: the Hessian product along v instead of the
// gradient, from `grad` and its change, `change`.
template <bool Gated, bool Second, class T>
MDOPS_HD void pull_row(const T* d, const T* v, const Cutoff<T>& cutoff, const Normalisation<T>& norm,
                       const T* grad, const T* change, T* g) {
  const RadialTerms<T> f = radial_terms(squared_length(d), cutoff);
  const T none[4] = {0, 0, 0, 0}, p[4] = {0, grad[0], grad[1], grad[2]};
  if constexpr (Second) {
    const T q[4] = {0, change[0], change[1], change[2]};
    T h[3];
    pair_gradient(d, f, norm, q, none, g);
    pair_hessian_product(d, v, f, norm, p, none, none, h);
    for (int a = 0; a < 3; ++a) g[a] += h[a];
    if constexpr (Gated) {
      add_gate_slope(d, f, change[3], g);
      // The term of w only: the Hessian of w L for L = 1.
      T flat[3] = {0, 0, 0};
      gate_hessian_product(d, v, f, T(1), none, flat);
      for (int a = 0; a < 3; ++a) g[a] += grad[3] * flat[a];
    }
  } else {
    pair_gradient(d, f, norm, p, none, g);
    if constexpr (Gated) add_gate_slope(d, f, grad[3], g);
  }
}

}  // namespace mdops
