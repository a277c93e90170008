// Pair vectors d_ij = x_j - x_i + S.cell, and sums over pairs for gradients by atoms and cells.
#pragma once

#include "common/pairs.h"

namespace mdops {

// Adds the gradient g of one pair vector to the gradients of its two positions and, through the image, of the
// cell:  dL/dx_j += g,  dL/dx_i -= g,  dL/dcell[row] += shift[row] g.
template <class T>
MDOPS_HD void add_pair_gradient(const T* g, int32_t image, double* xi, double* xj, double* cell) {
  for (int a = 0; a < 3; ++a) {
    const double value = g[a];
    xi[a] -= value;
    xj[a] += value;
    if (image != 0)
      for (int row = 0; row < 3; ++row) cell[3 * row + a] += image_shift(image, row) * value;
  }
}

// A number of a pair's virial, with g = dE/dd:  W[a][b] = -d[a] g[b].
template <class T>
MDOPS_HD double pair_virial(const T* g, const T* d, int a, int b) {
  return -static_cast<double>(d[a]) * g[b];
}

// Adds one pair's terms of force and virial:  F_i += g,  F_j -= g,  and W. As in DeePMD-kit a pair's virial
// belongs to the neighbour: `virial_j` is atom j's, or null; `virial` its system's.
template <class T>
MDOPS_HD void add_pair_force(const T* g, const T* d, double* fi, double* fj, double* virial,
                             double* virial_j) {
  for (int a = 0; a < 3; ++a) {
    fi[a] += g[a];
    fj[a] -= g[a];
    for (int b = 0; b < 3; ++b) {
      const double w = pair_virial(g, d, a, b);
      virial[3 * a + b] += w;
      if (virial_j) virial_j[3 * a + b] += w;
    }
  }
}

// The gradients of one pair by `add_pair_force`, from those of the forces of its atoms, f_i and f_j, and of
// the virials of its system and of atom j: with v their sum,  dL/dg[b] = f_i[b] - f_j[b] - sum_a d[a] v[a][b]
// and dL/dd[a] = -sum_b v[a][b] g[b].
template <class T>
MDOPS_HD void pair_force_gradient(const double* fi, const double* fj, const double* virial,
                                  const double* virial_j, const T* g, const T* d, T* grad_g, T* grad_d) {
  double by_g[3], by_d[3] = {0, 0, 0};
  for (int b = 0; b < 3; ++b) by_g[b] = fi[b] - fj[b];
  for (int a = 0; a < 3; ++a)
    for (int b = 0; b < 3; ++b) {
      const double v = virial[3 * a + b] + virial_j[3 * a + b];
      by_g[b] -= static_cast<double>(d[a]) * v;
      by_d[a] -= v * static_cast<double>(g[b]);
    }
  for (int a = 0; a < 3; ++a) {
    grad_g[a] = static_cast<T>(by_g[a]);
    grad_d[a] = static_cast<T>(by_d[a]);
  }
}

}  // namespace mdops
