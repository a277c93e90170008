// An atom's work in the two halves of a time step, and the tally of a step.
#pragma once

#include <cmath>
#include <cstdint>

#include "dynamics/chain.h"

namespace mdops {

// The first half of a step: p <- factor p + F dt/2, x += p dt/m. With noise it is BAOAB (B. Leimkuhler and C.
// Matthews, J. Chem. Phys. 138, 174102 (2013)): half of the drift, p <- keep p + width sqrt(m) xi, the other
// half. keep = exp(-friction dt), width = sqrt((1 - keep^2) kT).
struct FirstHalf {
  double dt, keep, width;

  MDOPS_HD void move(double factor, double force, double inverse_mass, const double* xi, double* x,
                     double* p) const {
    *p = std::fma(factor, *p, dt / 2 * force);
    if (xi == nullptr) {
      *x += dt * inverse_mass * *p;
      return;
    }
    const double half = dt / 2 * inverse_mass;
    *x += half * *p;
    *p = std::fma(keep, *p, width / std::sqrt(inverse_mass) * *xi);
    *x += half * *p;
  }
};

// The larger number, or NaN.
MDOPS_HD double larger_or_nan(double a, double b) {
  return a > b || std::isnan(a) ? a : b;
}

// For some atoms of one system at the end of a step: sums of the kinetic and the potential energy, and the
// maxima of the squared distance from `reference`, the number of neighbours beyond `sel`, and the negative
// distance of two atoms.
struct Measures {
  double kinetic, energy, moved2, overflow, closeness;

  // For no atoms.
  static MDOPS_HD Measures none() { return {0, 0, -INFINITY, -INFINITY, -INFINITY}; }

  MDOPS_HD void add(const Measures& other) {
    kinetic += other.kinetic;
    energy += other.energy;
    moved2 = larger_or_nan(moved2, other.moved2);
    overflow = larger_or_nan(overflow, other.overflow);
    closeness = larger_or_nan(closeness, other.closeness);
  }

  // For atoms of no system.
  MDOPS_HD void spoil() { kinetic = NAN; }
};

constexpr int kTally = 6;  // numbers of a system's tally

// For a system over the steps so far: the largest moved2, overflow, closeness, |energy| and kinetic energy,
// and the sum of the kinetic energies.
MDOPS_HD void update_tally(const double* before, const Measures& now, double kinetic, double* tally) {
  const double values[] = {now.moved2, now.overflow, now.closeness, std::fabs(now.energy), kinetic};
  for (int k = 0; k < kTally - 1; ++k) tally[k] = larger_or_nan(before[k], values[k]);
  tally[kTally - 1] = before[kTally - 1] + kinetic;
}

// The atoms of the second half of a step, and their measures.
template <class Real>
struct SecondHalf {
  using Measured = Measures;
  const double *positions, *reference, *momenta, *forces, *inverse_mass, *energy;
  const Real* nearest;
  const int32_t *within, *sel;
  int64_t ntypes;
  double dt;
  double* new_momenta;

  // p += F dt/2 of atom i.
  MDOPS_HD Measures kick(int64_t i) const {
    double p[3], p2 = 0, moved2 = 0;
    for (int c = 0; c < 3; ++c) {
      const int64_t k = 3 * i + c;
      const double way = positions[k] - reference[k];
      p[c] = momenta[k] + dt / 2 * forces[k];
      p2 += p[c] * p[c];
      moved2 += way * way;
    }
    const Measures m = measured(i, inverse_mass[i] * p2 / 2, moved2);
    // Written last: no load can move ahead of a store.
    for (int c = 0; c < 3; ++c) new_momenta[3 * i + c] = p[c];
    return m;
  }

  MDOPS_HD void spoil(int64_t i) const {
    for (int64_t k = 3 * i; k < 3 * i + 3; ++k) new_momenta[k] = NAN;
  }

  MDOPS_HD Measures measured(int64_t i, double kinetic, double moved2) const {
    double overflow = 0;
    for (int64_t t = 0; t < ntypes; ++t)
      overflow = larger_or_nan(overflow, static_cast<double>(within[i * ntypes + t]) - sel[t]);
    return {kinetic, energy[i], moved2, overflow, -static_cast<double>(nearest[i])};
  }
};

}  // namespace mdops
