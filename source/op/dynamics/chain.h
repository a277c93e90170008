// A Nose-Hoover chain: G. J. Martyna, M. L. Klein and M. Tuckerman, J. Chem. Phys. 97, 2635 (1992),
// factorised as M. E. Tuckerman et al., J. Phys. A 39, 5629 (2006). Its products and sums that are rounded
// once are written as std::fma: the compiler contracts no others (source/cuda.cmake), so that a chain has the
// same bits in every kernel.
#pragma once

#include <cmath>

#include "common/math.h"

namespace mdops {

constexpr int kMostLinks = 4;

// The bath of a chain. Masses: Q_0 = g kT tau^2 with g degrees of freedom, Q_j = kT tau^2.
struct Bath {
  double kT, freedom, tau;
  // 1 / Q_0 and the other 1 / Q_j: divisions are slow on a GPU.
  double first = 1 / (freedom * kT * tau * tau), other = 1 / (kT * tau * tau);

  // The force on the first link, from 2 E_kin, and on link j, from the momentum of the one before.
  MDOPS_HD double force(double twice_kinetic) const { return std::fma(-freedom, kT, twice_kinetic); }
  MDOPS_HD double force(int j, double before) const {
    return std::fma(before * before, inverse_mass(j - 1), -kT);
  }
  MDOPS_HD double inverse_mass(int j) const { return j == 0 ? first : other; }
};

// exp(x). A chain needs several of small x in sequence, so latency counts: by Taylor's polynomial, whose
// parts are independent, to rounding below 1/16.
MDOPS_HD double chain_exp(double x) {
  if (!(std::fabs(x) < 0.0625)) return std::exp(x);
  const double x2 = x * x, x4 = x2 * x2;
  const double low = std::fma(x2, std::fma(x, 1.0 / 120, 1.0 / 24), std::fma(x, 1.0 / 6, 1.0 / 2));
  const double top = std::fma(x, 1.0 / 362880, 1.0 / 40320);
  const double high = std::fma(x2, top, std::fma(x, 1.0 / 5040, 1.0 / 720));
  return 1 + std::fma(x2, std::fma(x4, high, low), x);
}

template <int Links>
struct Chain {
  double eta[Links], p[Links];

  // p_j after h/2 of its force G_j = (p_{j-1}^2 / Q_{j-1}, for j = 0 sum p^2/m) - g_j kT, between two
  // quarters of the drag of the next in the chain.
  MDOPS_HD void kick(const Bath& bath, int j, double drag, double twice_kinetic, double h) {
    const double force = j == 0 ? bath.force(twice_kinetic) : bath.force(j, p[j - 1]);
    p[j] = std::fma(p[j], drag, h / 2 * force) * drag;
  }

  // Moves the thermostats through `time`, in three parts that make it fourth order (M. Suzuki, J. Math. Phys.
  // 32, 400 (1991); H. Yoshida, Phys. Lett. A 150, 262 (1990)). Returns the factor of the particles' momenta.
  MDOPS_HD double advance(const Bath& bath, double twice_kinetic, double time) {
    constexpr double cube_root = 1.2599210498948732;  // of 2
    constexpr double outer = 1 / (2 - cube_root), inner = -cube_root / (2 - cube_root);
    double scale = 1;
    for (int part = 0; part < 3; ++part) {
      const double h = time * (part == 1 ? inner : outer);
      // exp(-h/4 p_{j+1} / Q_{j+1}): the return along the chain uses the same p_{j+1}.
      double drag[Links];
      for (int j = Links - 1; j >= 0; --j) {
        drag[j] = j == Links - 1 ? 1.0 : chain_exp(-h / 4 * p[j + 1] * bath.inverse_mass(j + 1));
        kick(bath, j, drag[j], twice_kinetic, h);
      }
      for (int j = 0; j < Links; ++j) eta[j] = std::fma(h * p[j], bath.inverse_mass(j), eta[j]);
      const double factor = chain_exp(-h * p[0] * bath.inverse_mass(0));
      scale *= factor;
      twice_kinetic *= factor * factor;
      for (int j = 0; j < Links; ++j) kick(bath, j, drag[j], twice_kinetic, h);
    }
    return scale;
  }
};

// No thermostat.
template <>
struct Chain<0> {
  MDOPS_HD double advance(const Bath&, double, double) { return 1; }
};

// One chain's positions and momenta in memory, `Links` each.
template <int Links>
MDOPS_HD Chain<Links> load_chain(const double* eta, const double* p) {
  Chain<Links> chain;
  if constexpr (Links > 0)
    for (int j = 0; j < Links; ++j) chain.eta[j] = eta[j], chain.p[j] = p[j];
  return chain;
}

template <int Links>
MDOPS_HD void store_chain(const Chain<Links>& chain, double* eta, double* p) {
  if constexpr (Links > 0)
    for (int j = 0; j < Links; ++j) eta[j] = chain.eta[j], p[j] = chain.p[j];
}

}  // namespace mdops
