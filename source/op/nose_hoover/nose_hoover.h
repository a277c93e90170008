// A Nose-Hoover chain: G. J. Martyna, M. L. Klein and M. Tuckerman, J. Chem. Phys. 97, 2635 (1992),
// factorised as M. E. Tuckerman et al., J. Phys. A 39, 5629 (2006).
#pragma once

#include <cmath>
#include <cstdint>

#include "common/math.h"

namespace mdops {

// What the chain is coupled to. Masses: Q_0 = g kT tau^2 with g degrees of freedom, Q_j = kT tau^2.
struct Bath {
  double kT, freedom, tau;
  // 1 / Q_0 and the other 1 / Q_j: divisions are slow on a GPU.
  double first = 1 / (freedom * kT * tau * tau), other = 1 / (kT * tau * tau);

  MDOPS_HD double goal(int64_t j) const { return j == 0 ? freedom * kT : kT; }
  MDOPS_HD double inverse_mass(int64_t j) const { return j == 0 ? first : other; }
};

// p_j after h/2 of its force G_j = (p_{j-1}^2 / Q_{j-1}, for j = 0 sum p^2/m) - g_j kT, between two quarters
// of the drag exp(-h/4 p_{j+1} / Q_{j+1}) of the next in the chain.
MDOPS_HD double kicked(const Bath& bath, const double* p, int64_t n, int64_t j, double twice_kinetic,
                       double h) {
  const double drive = j == 0 ? twice_kinetic : p[j - 1] * p[j - 1] * bath.inverse_mass(j - 1);
  const double force = h / 2 * (drive - bath.goal(j));
  if (j == n - 1) return p[j] + force;
  const double drag = std::exp(-h / 4 * p[j + 1] * bath.inverse_mass(j + 1));
  return (p[j] * drag + force) * drag;
}

// Moves the n thermostats eta, p through `time`, in three parts that make it fourth order (M. Suzuki, J.
// Math. Phys. 32, 400 (1991); H. Yoshida, Phys. Lett. A 150, 262 (1990)). Returns the factor of the
// particles' momenta.
MDOPS_HD double advance_chain(const Bath& bath, double* eta, double* p, int64_t n, double twice_kinetic,
                              double time) {
  constexpr double cube_root = 1.2599210498948732;  // of 2
  constexpr double outer = 1 / (2 - cube_root), inner = -cube_root / (2 - cube_root);
  double scale = 1;
  for (int part = 0; part < 3 && n > 0; ++part) {
    const double h = time * (part == 1 ? inner : outer);
    for (int64_t j = n - 1; j >= 0; --j) p[j] = kicked(bath, p, n, j, twice_kinetic, h);
    for (int64_t j = 0; j < n; ++j) eta[j] += h * p[j] * bath.inverse_mass(j);
    const double factor = std::exp(-h * p[0] * bath.inverse_mass(0));
    scale *= factor;
    twice_kinetic *= factor * factor;
    for (int64_t j = 0; j < n; ++j) p[j] = kicked(bath, p, n, j, twice_kinetic, h);
  }
  return scale;
}

}  // namespace mdops
