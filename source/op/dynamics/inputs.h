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

// Atoms sorted by system, and the systems' thermostats, which move by half a step.
struct SystemInputs {
  int64_t atoms, systems, links;
  SortedAtoms sorted{};
  ThermostatArgs baths{};
  Tensor eta, eta_momenta;  // after the step

  SystemInputs(auto& in, Input batch, Input eta_before, Input momenta_before, Input freedom, double dt,
               double kT, double tau) {
    in.take(sorted.batch, "batch", batch, {kAny});
    in.take(baths.eta, "eta", eta_before, {kAny, kAny});
    atoms = batch.size(0), systems = eta_before.size(0), links = eta_before.size(1);
    in.take(baths.p, "eta_momenta", momenta_before, {systems, links});
    in.take(baths.freedom, "freedom", freedom, {systems});
    constexpr int64_t most = std::numeric_limits<int32_t>::max();
    if (atoms > most || systems > most) fail(in.op, "atoms and systems must fit into 32-bit indices");
    if (links > kMostLinks)
      fail(in.op, "argument `eta` has chains of ", links, " thermostats, expected at most ", kMostLinks);
    if (links > 0) check_positive(in.op, "kT", kT), check_positive(in.op, "tau", tau);
    check_range(in.op, "batch", sorted.batch, atoms, 0, systems);
    check_finite(in.op, "dt", dt);
    sorted.atoms = static_cast<int32_t>(atoms), sorted.systems = static_cast<int32_t>(systems);
    if (in.op.on_cpu()) check_values(in.op);
    baths.kT = kT, baths.tau = tau, baths.time = dt / 2;
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

  FirstHalfInputs(auto& in, const SystemInputs& s, Input noise, double dt, double kT, double keep) {
    in.take(args.noise, "noise", noise, {kAny, 3});
    if (noise.size(0) != 0 && noise.size(0) != s.atoms)
      fail(in.op, "argument `noise` has ", noise.size(0), " rows, expected ", s.atoms, ", or none");
    if (noise.size(0) == 0)
      args.noise = nullptr;
    else if (!(keep >= 0 && keep <= 1 && kT >= 0 && std::isfinite(kT)))
      fail(in.op, "arguments `keep` and `kT` are ", keep, " and ", kT, ", expected 0 to 1, and not negative");
    args.sorted = s.sorted, args.half = {dt, keep, std::sqrt((1 - keep * keep) * kT)};
    positions = in.result(args.new_positions, {s.atoms, 3});
    momenta = in.result(args.new_momenta, {s.atoms, 3});
  }

  void take_atoms(auto& in, int64_t atoms, Input x, Input p, Input forces, Input inverse_mass) {
    in.take(args.positions, "positions", x, {atoms, 3});
    in.take(args.momenta, "momenta", p, {atoms, 3});
    in.take(args.forces, "forces", forces, {atoms, 3});
    in.take(args.inverse_mass, "inverse_mass", inverse_mass, {atoms});
  }
};

// The atoms of a second half, and its systems' results.
template <class Real>
struct SecondHalfInputs {
  SecondHalf<Real> half{};
  SystemResults results{};
  Tensor momenta, scale, kinetic, energy, tally;  // after it

  SecondHalfInputs(auto& in, const SystemInputs& s, Input positions, Input reference, Input momenta_before,
                   Input forces, Input inverse_mass, Input atom_energy, Input nearest, Input within,
                   Input sel, Input tally_before, double dt) {
    in.take(half.positions, "positions", positions, {s.atoms, 3});
    in.take(half.reference, "reference", reference, {s.atoms, 3});
    in.take(half.momenta, "momenta", momenta_before, {s.atoms, 3});
    in.take(half.forces, "forces", forces, {s.atoms, 3});
    in.take(half.inverse_mass, "inverse_mass", inverse_mass, {s.atoms});
    in.take(half.energy, "atom_energy", atom_energy, {s.atoms});
    in.take(half.nearest, "nearest", nearest, {s.atoms});
    in.take(half.within, "within", within, {s.atoms, kAny});
    half.ntypes = within.size(1), half.dt = dt;
    in.take(half.sel, "sel", sel, {half.ntypes});
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

  CellInputs(auto& in, const SystemInputs& s, Input virial, Input cell, Input momenta_before, Input xi_before,
             Input xi_momenta_before, Input inertia, const Barostat& barostat) {
    in.take(args.virial, "virial", virial, {s.systems, 3, 3});
    in.take(args.cell, "cell", cell, {s.systems, 3, 3});
    in.take(args.momenta, "cell_momenta", momenta_before, {s.systems, 6});
    in.take(args.of_cell.eta, "xi", xi_before, {s.systems, s.links});
    in.take(args.of_cell.p, "xi_momenta", xi_momenta_before, {s.systems, s.links});
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
