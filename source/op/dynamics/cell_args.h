// A system's work in both halves of a step in a moving cell, on both devices; inputs.h fills it.
#pragma once

#include "dynamics/args.h"
#include "dynamics/cell.h"

namespace mdops {

// Parameters of the barostat of all systems.
struct Barostat {
  double dt, kT, pressure, period;
  bool flexible;

  // The degrees of freedom of the cell's momenta: a symmetric matrix, or one number. The mass of their first
  // thermostat is that of nine, as in ASE.
  MDOPS_HD Bath bath() const {
    const double mass = kT * period * period;
    return {kT, flexible ? 6.0 : 1.0, period, 1 / (9 * mass), 1 / mass};
  }
};

// The cells of all systems, and the chains of their atoms and of themselves.
struct CellArgs {
  struct Chains {
    const double *eta, *p;
    double *new_eta, *new_p;
  };
  Chains of_atoms, of_cell;
  const double *freedom, *inertia, *virial, *cell, *momenta;
  double* new_momenta;
  Barostat barostat;
  double tau;
};

// For a system both devices do two tasks in parallel: `which` is 0 for its atoms, 1 for its cell. On a GPU
// two threads do them, since a chain takes long.
template <int Links>
struct CellMotion : CellArgs {
  MDOPS_HD double freedom_of(int64_t s) const { return freedom[s] > 0 ? freedom[s] : NAN; }

  // Moves a chain through half a step; returns the factor of its momenta.
  MDOPS_HD double advance(int which, int64_t s, double twice_kinetic) const {
    if constexpr (Links == 0) {
      return 1;
    } else {
      const CellArgs::Chains c = which ? of_cell : of_atoms;
      const Bath bath = which ? barostat.bath() : Bath{barostat.kT, freedom_of(s), tau};
      Chain<Links> chain = load_chain<Links>(c.eta + s * Links, c.p + s * Links);
      const double factor = chain.advance(bath, twice_kinetic, barostat.dt / 2);
      store_chain<Links>(chain, c.new_eta + s * Links, c.new_p + s * Links);
      return factor;
    }
  }

  // p after half a step of the cell's force.
  MDOPS_HD Symmetric kicked(int64_t s, const Symmetric& p, const Symmetric& flow) const {
    const double volume = volume_of(cell + 9 * s), outward = flow.trace() / freedom_of(s);
    Symmetric force = Symmetric::part_of(virial + 9 * s).plus(1, flow);
    force = force.plus(outward - barostat.pressure * volume, Symmetric::diagonal(1));
    if (!barostat.flexible) force = Symmetric::diagonal(force.trace() / 3);
    return p.plus(barostat.dt / 2, force);
  }

  // In a system without atoms nothing moves.
  MDOPS_HD void keep(int which, int64_t s) const {
    const CellArgs::Chains c = which ? of_cell : of_atoms;
    for (int64_t j = s * Links; j < (s + 1) * Links; ++j) c.new_eta[j] = c.eta[j], c.new_p[j] = c.p[j];
  }
};

// The first half of a step of a system: chains, the cell's momenta, and how atoms and cell will move.
template <int Links>
struct CellStart {
  CellMotion<Links> motion;
  const double *flow, *scale;
  double *new_cell, *moves;

  MDOPS_HD double factor(int which, int64_t s) const {
    const double of_cell = Symmetric::load(motion.momenta + 6 * s).squares() / motion.inertia[s];
    return motion.advance(which, s, which ? of_cell : Symmetric::load(flow + 6 * s).trace());
  }

  // With the factors of both chains.
  MDOPS_HD void set(int which, int64_t s, double of_atoms, double of_cell) const {
    const Symmetric now = Symmetric::load(flow + 6 * s).times(of_atoms * of_atoms);
    const Symmetric p = motion.kicked(s, Symmetric::load(motion.momenta + 6 * s).times(of_cell), now);
    const double time = which ? motion.barostat.dt : -motion.barostat.dt / 2;
    const Symmetric one = Symmetric::diagonal(1), drag = p.plus(p.trace() / motion.freedom_of(s), one);
    const Exponential e((which ? p : drag).times(time / motion.inertia[s]));
    double* own = moves + Moves::kCount * s;
    e.whole.store(own + 12 * which);
    e.mean.times(std::fabs(time)).store(own + 12 * which + 6);
    if (!which) {
      own[24] = scale[s] * of_atoms;
      p.store(motion.new_momenta + 6 * s);
      return;
    }
    const double* h = motion.cell + 9 * s;
    double* to = new_cell + 9 * s;
    for (int k = 0; k < 9; ++k) to[k] = 0;
    for (int k = 0; k < 9; k += 3) e.whole.add_product(h + k, 1, to + k);
  }

  MDOPS_HD void keep(int which, int64_t s) const {
    motion.keep(which, s);
    if (!which) Symmetric::load(motion.momenta + 6 * s).store(motion.new_momenta + 6 * s);
    if (which)
      for (int k = 0; k < 9; ++k) new_cell[9 * s + k] = motion.cell[9 * s + k];
    else
      for (int k = 0; k < Moves::kCount; ++k) moves[Moves::kCount * s + k] = 0;
  }
};

// The end of a system's step.
template <int Links>
struct CellFinish {
  static constexpr int kThreads = 2;
  CellMotion<Links> motion;
  SystemResults results;
  const double* reference_cell;
  double* flow;
  double cutoff;

  MDOPS_HD void set(int which, int64_t s, const CellMeasures& sum, bool occupied) const {
    if (!occupied) motion.keep(which, s);
    Symmetric p = Symmetric::load(motion.momenta + 6 * s);
    double factor = 1;
    if (occupied) {
      p = motion.kicked(s, p, sum.flow);
      factor = motion.advance(which, s, which ? p.squares() / motion.inertia[s] : sum.flow.trace());
    }
    if (which) return p.times(factor).store(motion.new_momenta + 6 * s);
    Measures m = sum.of_atoms;
    m.kinetic = sum.flow.trace() / 2;
    if (occupied) {
      // Pairs within the cutoff are in the list while no atom has moved by half the skin; the strain brings
      // atoms closer that were as far apart as the list reaches.
      const Strain strain(reference_cell + 9 * s, motion.cell + 9 * s);
      const double moved = std::sqrt(m.moved2) + strain.shrinkage() * cutoff / 2;
      m.moved2 = moved * moved;
    }
    results.set(s, m, factor);
    sum.flow.times(factor * factor).store(flow + 6 * s);
  }
};

}  // namespace mdops
