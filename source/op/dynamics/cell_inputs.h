// The cells of a step at the ops' entry, and their results, for both devices.
#pragma once

#include "dynamics/cell_args.h"
#include "dynamics/inputs.h"

namespace mdops {

struct CellInputs {
  CellArgs args{};
  Tensor momenta, xi, xi_momenta;  // after the step

  CellInputs(auto& in, const SystemInputs& s, const Tensor& virial, const Tensor& cell,
             const Tensor& momenta_before, const Tensor& xi_before, const Tensor& xi_momenta_before,
             const Tensor& inertia, const Barostat& barostat) {
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
