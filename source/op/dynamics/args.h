// Arguments of the halves of a step, on both devices; inputs.h fills them.
#pragma once

#include <type_traits>

#include "dynamics/dynamics.h"

namespace mdops {

// Atoms in the order of their systems: `batch` (N,).
struct SortedAtoms {
  const int32_t* batch;
  int32_t atoms, systems;
};

// The first half of a step: the atoms' numbers, (N, 3) and (N,), and their systems', (S,); noise (N, 3) or
// null.
struct FirstHalfArgs {
  const double *positions, *momenta, *forces, *inverse_mass, *scale, *kinetic, *noise;
  SortedAtoms sorted;
  FirstHalf half;
  double *new_positions, *new_momenta;

  // Moves atom i, with the factor of its momentum.
  MDOPS_HD void move(int64_t i, double factor) const {
    double x[3], p[3];
    for (int c = 0; c < 3; ++c) {
      const int64_t k = 3 * i + c;
      x[c] = positions[k], p[c] = momenta[k];
      half.move(factor, forces[k], inverse_mass[i], noise ? noise + k : nullptr, x + c, p + c);
    }
    for (int c = 0; c < 3; ++c) new_positions[3 * i + c] = x[c], new_momenta[3 * i + c] = p[c];
  }
};

// The chains of all systems, (S, links), moved by `time`, fs.
struct ThermostatArgs {
  const double *eta, *p, *freedom;
  double *new_eta, *new_p;
  double kT, tau, time;
};

// A system's chain, and its degrees of freedom.
template <int Links>
struct ReadChain {
  Chain<Links> chain;
  double freedom;
};

// A system's work on both devices: its chain, and the results of its atoms' measures.
template <int Links>
struct Thermostats : ThermostatArgs {
  // Moves the chain of a system, and stores it if `store`; returns the factor of its atoms' momenta.
  MDOPS_HD double advance(int64_t system, double kinetic, bool store) const {
    ReadChain<Links> chain = read(system);
    return advance(system, kinetic, store, chain);
  }
  // The same in two parts.
  MDOPS_HD ReadChain<Links> read(int64_t system) const {
    if constexpr (Links == 0)
      return {};
    else
      return {load_chain<Links>(eta + system * Links, p + system * Links), freedom[system]};
  }
  MDOPS_HD double advance(int64_t system, double kinetic, bool store, ReadChain<Links>& read) const {
    if constexpr (Links == 0) {
      return 1;
    } else {
      const double g = read.freedom > 0 ? read.freedom : NAN;
      const double scale = read.chain.advance({kT, g, tau}, 2 * kinetic, time);
      if (store) store_chain<Links>(read.chain, new_eta + system * Links, new_p + system * Links);
      return scale;
    }
  }

  // Keeps the chain of a system without atoms.
  MDOPS_HD void keep(int64_t system) const {
    for (int64_t j = system * Links; j < (system + 1) * Links; ++j) new_eta[j] = eta[j], new_p[j] = p[j];
  }
};

// A system's results at the end of a step, except its atoms' momenta.
struct SystemResults {
  const double* tally;
  double *scale, *kinetic, *energy, *new_tally;

  MDOPS_HD void set(int64_t system, const Measures& m, double factor) const {
    const double now = m.kinetic * factor * factor;
    scale[system] = factor;
    kinetic[system] = now;
    energy[system] = m.energy;
    update_tally(tally + system * kTally, m, now, new_tally + system * kTally);
  }
};

// The end of a system's step.
template <int Links>
struct Finish {
  static constexpr int kThreads = 1;
  Thermostats<Links> bath;
  SystemResults results;

  MDOPS_HD void set(int, int64_t system, const Measures& sum, bool occupied) const {
    if (!occupied) bath.keep(system);
    results.set(system, sum, occupied ? bath.advance(system, sum.kinetic, true) : 1.0);
  }
};

// Calls f(std::integral_constant<int, links>{}), for a checked number of links.
void dispatch_links(int64_t links, const auto& f) {
  switch (links) {
    case 0:
      return f(std::integral_constant<int, 0>{});
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    default:
      return f(std::integral_constant<int, kMostLinks>{});
  }
}

}  // namespace mdops
