// The arguments of both halves of a step in a cell that moves, at the ops' entry, and their results.
#pragma once

#include "dynamics/cell_args.h"
#include "dynamics/inputs.h"

namespace mdops {

// The cells of systems, of which `plain` has the atoms and the thermostats of these.
struct CellInputs {
  SystemInputs& plain;
  Barostat barostat;
  Tensor virial, cell, momenta, xi, xi_momenta, inertia;
  Tensor new_momenta, new_xi, new_xi_momenta;

  CellInputs(const Op& op, SystemInputs& plain_, const Tensor& virial_, const Tensor& cell_,
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
    if (plain.links > 0) SystemInputs::check_positive(op, "period", barostat.period);
    if (plain.atoms > 0 && plain.systems == 0) fail(op, "there are atoms, and no systems");
  }

  CellArgs args() {
    CellArgs a{};
    a.of_atoms = {data_of(plain.eta), data_of(plain.eta_momenta), data_of(plain.new_eta),
                  data_of(plain.new_eta_momenta)};
    a.of_cell = {data_of(xi), data_of(xi_momenta), data_of(new_xi), data_of(new_xi_momenta)};
    a.freedom = data_of(plain.freedom), a.inertia = data_of(inertia), a.virial = data_of(virial);
    a.cell = data_of(cell), a.momenta = data_of(momenta), a.new_momenta = data_of(new_momenta);
    a.barostat = barostat, a.tau = plain.tau;
    return a;
  }
};

struct CellFirstHalfInputs {
  static constexpr const char* kFirst = "positions";
  using Given = Listed<Times<16, const Tensor&>, Times<5, double>, bool>;

  SystemInputs plain;
  CellInputs systems;
  Tensor positions, momenta, forces, inverse_mass, scale, flow;
  Tensor new_positions, new_momenta, new_cell, moves;

  CellFirstHalfInputs(const Op& op, const Tensor& positions_, const Tensor& momenta_, const Tensor& forces_,
                      const Tensor& inverse_mass_, const Tensor& batch, const Tensor& scale_,
                      const Tensor& flow_, const Tensor& virial, const Tensor& cell,
                      const Tensor& cell_momenta, const Tensor& xi, const Tensor& xi_momenta,
                      const Tensor& eta, const Tensor& eta_momenta, const Tensor& freedom,
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
    return {{systems.args()}, data_of(flow), data_of(scale), data_of(new_cell), data_of(moves)};
  }

  CellFirstHalf half() {
    return {data_of(positions), data_of(momenta),       data_of(forces),     data_of(inverse_mass),
            data_of(moves),     data_of(new_positions), data_of(new_momenta)};
  }

  Outputs<9> results() const {
    return {new_positions,       new_momenta,           new_cell,
            systems.new_momenta, systems.new_xi,        systems.new_xi_momenta,
            plain.new_eta,       plain.new_eta_momenta, moves};
  }
};

struct CellSecondHalfInputs {
  static constexpr const char* kFirst = "positions";
  using Given = Listed<Times<22, const Tensor&>, Times<6, double>, bool>;

  SecondHalfInputs atoms;
  CellInputs systems;
  Tensor moves, reference_cell, new_flow;
  double cutoff;

  CellSecondHalfInputs(const Op& op, const Tensor& positions, const Tensor& reference, const Tensor& momenta,
                       const Tensor& forces, const Tensor& inverse_mass, const Tensor& batch,
                       const Tensor& energy, const Tensor& nearest, const Tensor& within, const Tensor& sel,
                       const Tensor& moves_, const Tensor& reference_cell_, const Tensor& virial,
                       const Tensor& cell, const Tensor& cell_momenta, const Tensor& xi,
                       const Tensor& xi_momenta, const Tensor& eta, const Tensor& eta_momenta,
                       const Tensor& freedom, const Tensor& inertia, const Tensor& tally, double dt,
                       double kT, double tau, double pressure, double period, double cutoff_, bool flexible)
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
    return {atoms.half<Real>(),           data_of(moves),
            data_of(systems.cell),        data_of(reference_cell),
            data_of(atoms.systems.batch), atoms.systems.systems};
  }

  template <int Links>
  CellFinish<Links> finish() {
    return {{systems.args()}, atoms.results(), data_of(reference_cell), data_of(new_flow), cutoff};
  }

  Outputs<11> results() const {
    return {atoms.new_momenta,     atoms.scale,
            atoms.kinetic,         new_flow,
            atoms.energies,        systems.new_momenta,
            systems.new_xi,        systems.new_xi_momenta,
            atoms.systems.new_eta, atoms.systems.new_eta_momenta,
            atoms.new_tally};
  }
};

}  // namespace mdops
