// The arguments of both halves of a step in a cell that moves, and what a system does in them.
#pragma once

#include <tuple>

#include "dynamics/args.h"
#include "dynamics/cell.h"

namespace mdops {

// What the cells of all systems are coupled to.
struct Barostat {
  double dt, kT, pressure, period;
  bool flexible;

  // The momenta that the cell has: all of a symmetric matrix, or one. The mass of their first thermostat is
  // that of nine, as in ASE.
  MDOPS_HD Bath bath() const {
    const double mass = kT * period * period;
    return {kT, flexible ? 6.0 : 1.0, period, 1 / (9 * mass), 1 / mass};
  }
};

// The cells of systems, of which `plain` has the atoms and the thermostats of these.
struct CellSystems {
  StepSystems& plain;
  Barostat barostat;
  Tensor virial, cell, momenta, xi, xi_momenta, inertia;
  Tensor new_momenta, new_xi, new_xi_momenta;

  CellSystems(const Op& op, StepSystems& plain_, const Tensor& virial_, const Tensor& cell_,
              const Tensor& momenta_, const Tensor& xi_, const Tensor& xi_momenta_, const Tensor& inertia_,
              const Barostat& barostat_)
      : plain(plain_),
        barostat(barostat_),
        virial(input(op, "virial", virial_, ScalarType::Double, {plain.systems, 3, 3})),
        cell(input(op, "cell", cell_, ScalarType::Double, {plain.systems, 3, 3})),
        momenta(input(op, "cell_momenta", momenta_, ScalarType::Double, {plain.systems, 6})),
        xi(input(op, "xi", xi_, ScalarType::Double, {plain.systems, plain.links})),
        xi_momenta(input(op, "xi_momenta", xi_momenta_, ScalarType::Double, {plain.systems, plain.links})),
        inertia(input(op, "inertia", inertia_, ScalarType::Double, {plain.systems})),
        new_momenta(empty(op, {plain.systems, 6}, ScalarType::Double)),
        new_xi(empty(op, {plain.systems, plain.links}, ScalarType::Double)),
        new_xi_momenta(empty(op, {plain.systems, plain.links}, ScalarType::Double)) {
    check_finite(op, "dt", barostat.dt);
    check_finite(op, "pressure", barostat.pressure);
    if (plain.links > 0) StepSystems::check_positive(op, "period", barostat.period);
    if (plain.atoms > 0 && plain.systems == 0) fail(op, "there are atoms, and no systems");
  }
};

// Of one system both devices do two things side by side: `which` is 0 for what belongs to its atoms, 1 for
// its cell. On a GPU two threads do them, since a chain is long to wait for.
template <int Links>
struct CellMotion {
  struct Chains {
    const double *eta, *p;
    double *new_eta, *new_p;
  };
  Chains of_atoms, of_cell;
  const double *freedom, *inertia, *virial, *cell, *momenta;
  double* new_momenta;
  Barostat barostat;
  double tau;

  explicit CellMotion(CellSystems& s)
      : of_atoms{s.plain.eta.const_data_ptr<double>(), s.plain.eta_momenta.const_data_ptr<double>(),
                 s.plain.new_eta.mutable_data_ptr<double>(),
                 s.plain.new_eta_momenta.mutable_data_ptr<double>()},
        of_cell{s.xi.const_data_ptr<double>(), s.xi_momenta.const_data_ptr<double>(),
                s.new_xi.mutable_data_ptr<double>(), s.new_xi_momenta.mutable_data_ptr<double>()},
        freedom(s.plain.freedom.const_data_ptr<double>()),
        inertia(s.inertia.const_data_ptr<double>()),
        virial(s.virial.const_data_ptr<double>()),
        cell(s.cell.const_data_ptr<double>()),
        momenta(s.momenta.const_data_ptr<double>()),
        new_momenta(s.new_momenta.mutable_data_ptr<double>()),
        barostat(s.barostat),
        tau(s.plain.tau) {}

  MDOPS_HD double freedom_of(int64_t s) const { return freedom[s] > 0 ? freedom[s] : NAN; }

  // Moves a chain through half a step; the factor of the momenta that it is coupled to.
  MDOPS_HD double advance(int which, int64_t s, double twice_kinetic) const {
    if constexpr (Links == 0) {
      return 1;
    } else {
      const Chains c = which ? of_cell : of_atoms;
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

  // Of a system without atoms nothing moves.
  MDOPS_HD void keep(int which, int64_t s) const {
    const Chains c = which ? of_cell : of_atoms;
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

// What a system is at the end of a step.
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
      // atoms together that were as far apart as the list reaches.
      const Strain strain(reference_cell + 9 * s, motion.cell + 9 * s);
      const double moved = std::sqrt(m.moved2) + strain.shrinkage() * cutoff / 2;
      m.moved2 = moved * moved;
    }
    results.set(s, m, factor);
    sum.flow.times(factor * factor).store(flow + 6 * s);
  }
};

using BegunInCell = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using EndedInCell =
    std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

struct CellBeginArgs {
  StepSystems plain;
  CellSystems systems;
  Tensor positions, momenta, forces, inverse_mass, scale, flow;
  Tensor new_positions, new_momenta, new_cell, moves;

  CellBeginArgs(const Op& op, const Tensor& positions_, const Tensor& momenta_, const Tensor& forces_,
                const Tensor& inverse_mass_, const Tensor& batch, const Tensor& scale_, const Tensor& flow_,
                const Tensor& virial, const Tensor& cell, const Tensor& cell_momenta, const Tensor& xi,
                const Tensor& xi_momenta, const Tensor& eta, const Tensor& eta_momenta, const Tensor& freedom,
                const Tensor& inertia, double dt, double kT, double tau, double pressure, double period,
                bool flexible)
      : plain(op, batch, eta, eta_momenta, freedom, kT, tau),
        systems(op, plain, virial, cell, cell_momenta, xi, xi_momenta, inertia,
                {dt, kT, pressure, period, flexible}),
        positions(input(op, "positions", positions_, ScalarType::Double, {plain.atoms, 3})),
        momenta(input(op, "momenta", momenta_, ScalarType::Double, {plain.atoms, 3})),
        forces(input(op, "forces", forces_, ScalarType::Double, {plain.atoms, 3})),
        inverse_mass(input(op, "inverse_mass", inverse_mass_, ScalarType::Double, {plain.atoms})),
        scale(input(op, "scale", scale_, ScalarType::Double, {plain.systems})),
        flow(input(op, "flow", flow_, ScalarType::Double, {plain.systems, 6})),
        new_positions(empty(op, {plain.atoms, 3}, ScalarType::Double)),
        new_momenta(empty(op, {plain.atoms, 3}, ScalarType::Double)),
        new_cell(empty(op, {plain.systems, 3, 3}, ScalarType::Double)),
        moves(empty(op, {plain.systems, Moves::kCount}, ScalarType::Double)) {}

  template <int Links>
  CellStart<Links> start() {
    return {CellMotion<Links>(systems), flow.const_data_ptr<double>(), scale.const_data_ptr<double>(),
            new_cell.mutable_data_ptr<double>(), moves.mutable_data_ptr<double>()};
  }

  CellFirstHalf half() {
    return {positions.const_data_ptr<double>(),    momenta.const_data_ptr<double>(),
            forces.const_data_ptr<double>(),       inverse_mass.const_data_ptr<double>(),
            moves.const_data_ptr<double>(),        new_positions.mutable_data_ptr<double>(),
            new_momenta.mutable_data_ptr<double>()};
  }

  BegunInCell results() const {
    return {new_positions,       new_momenta,           new_cell,
            systems.new_momenta, systems.new_xi,        systems.new_xi_momenta,
            plain.new_eta,       plain.new_eta_momenta, moves};
  }
};

struct CellEndArgs {
  EndArgs atoms;
  CellSystems systems;
  Tensor moves, reference_cell, new_flow;
  double cutoff;

  CellEndArgs(const Op& op, const Tensor& positions, const Tensor& reference, const Tensor& momenta,
              const Tensor& forces, const Tensor& inverse_mass, const Tensor& batch, const Tensor& energy,
              const Tensor& nearest, const Tensor& within, const Tensor& sel, const Tensor& moves_,
              const Tensor& reference_cell_, const Tensor& virial, const Tensor& cell,
              const Tensor& cell_momenta, const Tensor& xi, const Tensor& xi_momenta, const Tensor& eta,
              const Tensor& eta_momenta, const Tensor& freedom, const Tensor& inertia, const Tensor& tally,
              double dt, double kT, double tau, double pressure, double period, double cutoff_, bool flexible)
      : atoms(op, positions, reference, momenta, forces, inverse_mass, batch, energy, nearest, within, sel,
              eta, eta_momenta, freedom, tally, dt, kT, tau),
        systems(op, atoms.systems, virial, cell, cell_momenta, xi, xi_momenta, inertia,
                {dt, kT, pressure, period, flexible}),
        moves(input(op, "moves", moves_, ScalarType::Double, {systems.plain.systems, Moves::kCount})),
        reference_cell(
            input(op, "reference_cell", reference_cell_, ScalarType::Double, {systems.plain.systems, 3, 3})),
        new_flow(empty(op, {systems.plain.systems, 6}, ScalarType::Double)),
        cutoff(cutoff_) {
    check_finite(op, "cutoff", cutoff);
  }

  template <class Real>
  CellSecondHalf<Real> half() {
    return {atoms.half<Real>(),
            moves.const_data_ptr<double>(),
            systems.cell.const_data_ptr<double>(),
            reference_cell.const_data_ptr<double>(),
            atoms.systems.batch.const_data_ptr<int32_t>(),
            atoms.systems.systems};
  }

  template <int Links>
  CellFinish<Links> finish() {
    return {CellMotion<Links>(systems), SystemResults(atoms), reference_cell.const_data_ptr<double>(),
            new_flow.mutable_data_ptr<double>(), cutoff};
  }

  EndedInCell results() const {
    return {atoms.new_momenta,     atoms.scale,
            atoms.kinetic,         new_flow,
            atoms.energies,        systems.new_momenta,
            systems.new_xi,        systems.new_xi_momenta,
            atoms.systems.new_eta, atoms.systems.new_eta_momenta,
            atoms.new_tally};
  }
};

}  // namespace mdops
