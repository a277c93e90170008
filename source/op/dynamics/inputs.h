// The arguments of both halves of a step at the ops' entry, and their results, for both devices.
#pragma once

#include <cmath>
#include <limits>

#include "common/checked.h"
#include "dynamics/cell_args.h"

namespace mdops {

inline void check_finite(const Op& op, const char* name, double value) {
  if (!std::isfinite(value)) fail(op, "argument `", name, "` is not finite");
}

// What several ops take together: atoms at the begin and at the end of a step, thermostats, and cells.
struct AtomTensors {
  const Tensor &positions, &momenta, &forces, &inverse_mass, &batch;
  using Parts = TensorParts<5>;
};
struct EndTensors {
  const Tensor &positions, &reference, &momenta, &forces, &inverse_mass, &batch, &atom_energy, &nearest,
      &within, &sel;
  using Parts = TensorParts<10>;
};
struct BathTensors {
  const Tensor &eta, &eta_momenta, &freedom;
  using Parts = TensorParts<3>;
};
struct CellTensors {
  const Tensor &virial, &cell, &cell_momenta, &xi, &xi_momenta;
  using Parts = TensorParts<5>;
};
struct BathNumbers {
  double dt, kT, tau;
  using Parts = TypeList<double, double, double>;
};

// Atoms sorted by system, and the systems' thermostats, which move by half a step.
struct SystemInputs {
  int64_t atoms, systems, links;
  SortedAtoms sorted{};
  ThermostatArgs baths{};
  Tensor eta, eta_momenta;  // after the step

  SystemInputs(auto& in, Input batch, const BathTensors& before, const BathNumbers& of) {
    in.take(sorted.batch, "batch", batch, {kAny});
    in.take(baths.eta, "eta", before.eta, {kAny, kAny});
    atoms = batch.size(0), systems = before.eta.size(0), links = before.eta.size(1);
    in.take(baths.p, "eta_momenta", before.eta_momenta, {systems, links});
    in.take(baths.freedom, "freedom", before.freedom, {systems});
    constexpr int64_t most = std::numeric_limits<int32_t>::max();
    if (atoms > most || systems > most) fail(in.op, "atoms and systems must fit into 32-bit indices");
    if (links > kMostLinks)
      fail(in.op, "argument `eta` has chains of ", links, " thermostats, expected at most ", kMostLinks);
    if (links > 0) check_positive(in.op, "kT", of.kT), check_positive(in.op, "tau", of.tau);
    check_range(in.op, "batch", sorted.batch, atoms, 0, systems);
    check_finite(in.op, "dt", of.dt);
    sorted.atoms = static_cast<int32_t>(atoms), sorted.systems = static_cast<int32_t>(systems);
    if (in.op.on_cpu()) check_values(in.op);
    baths.kT = of.kT, baths.tau = of.tau, baths.time = of.dt / 2;
    make_results(in);
  }

  void make_results(auto& in) {
    eta = in.result(baths.new_eta, {systems, links});
    eta_momenta = in.result(baths.new_p, {systems, links});
  }

 private:
  void check_values(const Op& op) const {
    for (int64_t i = 1; i < atoms; ++i)
      if (sorted.batch[i] < sorted.batch[i - 1])
        fail(op, "argument `batch` falls from atom ", i - 1,
             " to the next: the atoms must be sorted by system");
    for (int64_t k = 0; k < systems && links > 0; ++k)
      check_positive(op, "freedom[" + std::to_string(k) + "]", baths.freedom[k]);
  }
};

// The arrays that a first half moves, and their initial values.
struct FirstHalfInputs {
  FirstHalfArgs args{};
  Tensor positions, momenta;  // after it

  FirstHalfInputs(auto& in, const SystemInputs& s, Input noise, const BathNumbers& of, double keep) {
    in.take(args.noise, "noise", noise, {kAny, 3});
    if (noise.size(0) != 0 && noise.size(0) != s.atoms)
      fail(in.op, "argument `noise` has ", noise.size(0), " rows, expected ", s.atoms, ", or none");
    if (noise.size(0) == 0)
      args.noise = nullptr;
    else if (!(keep >= 0 && keep <= 1 && of.kT >= 0 && std::isfinite(of.kT)))
      fail(in.op, "arguments `keep` and `kT` are ", keep, " and ", of.kT,
           ", expected 0 to 1, and not negative");
    args.sorted = s.sorted, args.half = {of.dt, keep, std::sqrt((1 - keep * keep) * of.kT)};
    positions = in.result(args.new_positions, {s.atoms, 3});
    momenta = in.result(args.new_momenta, {s.atoms, 3});
  }
};

// The atoms of a first half, in its arguments, or of a second half.
void take_atoms(auto& in, auto& args, int64_t atoms, const auto& of) {
  in.take(args.positions, "positions", of.positions, {atoms, 3});
  in.take(args.momenta, "momenta", of.momenta, {atoms, 3});
  in.take(args.forces, "forces", of.forces, {atoms, 3});
  in.take(args.inverse_mass, "inverse_mass", of.inverse_mass, {atoms});
}

// The atoms of a second half, and its systems' results.
template <class Real>
struct SecondHalfInputs {
  SecondHalf<Real> half{};
  SystemResults results{};
  Tensor momenta, scale, kinetic, energy, tally;  // after it

  SecondHalfInputs(auto& in, const SystemInputs& s, const EndTensors& of, Input tally_before, double dt) {
    take_atoms(in, half, s.atoms, of);
    in.take(half.reference, "reference", of.reference, {s.atoms, 3});
    in.take(half.energy, "atom_energy", of.atom_energy, {s.atoms});
    in.take(half.nearest, "nearest", of.nearest, {s.atoms});
    in.take(half.within, "within", of.within, {s.atoms, kAny});
    half.ntypes = of.within.size(1), half.dt = dt;
    in.take(half.sel, "sel", of.sel, {half.ntypes});
    in.take(results.tally, "tally", tally_before, {s.systems, kTally});
    momenta = in.result(half.new_momenta, {s.atoms, 3});
    scale = in.result(results.scale, {s.systems}), kinetic = in.result(results.kinetic, {s.systems});
    energy = in.result(results.energy, {s.systems});
    tally = in.result(results.new_tally, {s.systems, kTally});
  }
};

// The cells of a step.
struct CellInputs {
  CellArgs args{};
  Tensor momenta, xi, xi_momenta;  // after the step

  CellInputs(auto& in, const SystemInputs& s, const CellTensors& of, Input inertia,
             const Barostat& barostat) {
    in.take(args.virial, "virial", of.virial, {s.systems, 3, 3});
    in.take(args.cell, "cell", of.cell, {s.systems, 3, 3});
    in.take(args.momenta, "cell_momenta", of.cell_momenta, {s.systems, 6});
    in.take(args.of_cell.eta, "xi", of.xi, {s.systems, s.links});
    in.take(args.of_cell.p, "xi_momenta", of.xi_momenta, {s.systems, s.links});
    in.take(args.inertia, "inertia", inertia, {s.systems});
    check_finite(in.op, "pressure", barostat.pressure);
    if (s.links > 0) check_positive(in.op, "period", barostat.period);
    if (s.atoms > 0 && s.systems == 0) fail(in.op, "there are atoms, and no systems");
    const ThermostatArgs& of_atoms = s.baths;
    args.of_atoms = {of_atoms.eta, of_atoms.p, of_atoms.new_eta, of_atoms.new_p};
    args.freedom = of_atoms.freedom, args.tau = of_atoms.tau, args.barostat = barostat;
    momenta = in.result(args.new_momenta, {s.systems, 6});
    xi = in.result(args.of_cell.new_eta, {s.systems, s.links});
    xi_momenta = in.result(args.of_cell.new_p, {s.systems, s.links});
  }
};

}  // namespace mdops
