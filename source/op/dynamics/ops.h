// The ops on the steps of dynamics. A device has begin_systems, end_systems, end_and_begin and begin_cells.
#pragma once

#include "common/bind.h"
#include "dynamics/inputs.h"

namespace mdops {

template <class Device>
struct DynamicsOps {
  using In = Checked<Device>;

  static Outputs<4> begin_step(In& in, AtomTensors atoms, Input scale, Input kinetic, BathTensors baths,
                               Input noise, BathNumbers of, double keep) {
    const SystemInputs s(in, atoms.batch, baths, of);
    FirstHalfInputs begin(in, s, noise, of, keep);
    take_atoms(in, begin.args, s.atoms, atoms);
    in.take(begin.args.scale, "scale", scale, {s.systems});
    in.take(begin.args.kinetic, "kinetic", kinetic, {s.systems});
    dispatch_links(s.links,
                   [&](auto links) { begin_systems(in.op, begin.args, Thermostats<links>{s.baths}); });
    return {begin.positions, begin.momenta, s.eta, s.eta_momenta};
  }

  static Outputs<7> end_step(In& in, EndTensors atoms, BathTensors baths, Input tally, BathNumbers of) {
    const SystemInputs s(in, atoms.batch, baths, of);
    return in.for_type_of(atoms.nearest, [&]<class Real>(Real) -> Outputs<7> {
      const SecondHalfInputs<Real> end(in, s, atoms, tally, of.dt);
      dispatch_links(s.links, [&](auto links) {
        end_systems(in.op, s.sorted, end.half, Finish<links>{{s.baths}, end.results});
      });
      return {end.momenta, end.scale, end.kinetic, end.energy, s.eta, s.eta_momenta, end.tally};
    });
  }

  // The first half begins with the results of the second.
  static Outputs<11> next_step(In& in, EndTensors atoms, BathTensors baths, Input tally, Input noise,
                               BathNumbers of, double keep) {
    const SystemInputs s(in, atoms.batch, baths, of);
    SystemInputs then = s;
    then.baths.eta = s.baths.new_eta, then.baths.p = s.baths.new_p;
    then.make_results(in);
    FirstHalfInputs begin(in, then, noise, of, keep);
    return in.for_type_of(atoms.nearest, [&]<class Real>(Real) -> Outputs<11> {
      const SecondHalfInputs<Real> end(in, s, atoms, tally, of.dt);
      FirstHalfArgs& a = begin.args;
      a.positions = end.half.positions, a.momenta = end.half.new_momenta, a.forces = end.half.forces;
      a.inverse_mass = end.half.inverse_mass, a.scale = end.results.scale, a.kinetic = end.results.kinetic;
      dispatch_links(s.links, [&](auto links) {
        end_and_begin(in.op, s.sorted, end.half, Finish<links>{{s.baths}, end.results}, a,
                      Thermostats<links>{then.baths});
      });
      return {end.momenta, end.scale,       end.kinetic,   end.energy, s.eta,           s.eta_momenta,
              end.tally,   begin.positions, begin.momenta, then.eta,   then.eta_momenta};
    });
  }

  static Outputs<9> begin_cell_step(In& in, AtomTensors atoms, Input scale, Input flow, CellTensors of_cells,
                                    BathTensors baths, Input inertia, BathNumbers of, double pressure,
                                    double period, bool flexible) {
    const SystemInputs s(in, atoms.batch, baths, of);
    const CellInputs cells(in, s, of_cells, inertia, {of.dt, of.kT, pressure, period, flexible});
    CellFirstHalf half{};
    take_atoms(in, half, s.atoms, atoms);
    CellStart<0> of_systems{};
    in.take(of_systems.scale, "scale", scale, {s.systems});
    in.take(of_systems.flow, "flow", flow, {s.systems, 6});
    Tensor new_positions = in.result(half.new_positions, {s.atoms, 3});
    Tensor new_momenta = in.result(half.new_momenta, {s.atoms, 3});
    Tensor new_cell = in.result(of_systems.new_cell, {s.systems, 3, 3});
    Tensor moves = in.result(of_systems.moves, {s.systems, Moves::kCount});
    half.moves = of_systems.moves;
    dispatch_links(s.links, [&](auto links) {
      begin_cells(in.op, s.sorted,
                  CellStart<links>{
                      {cells.args}, of_systems.flow, of_systems.scale, of_systems.new_cell, of_systems.moves},
                  half);
    });
    return {new_positions,    new_momenta, new_cell,      cells.momenta, cells.xi,
            cells.xi_momenta, s.eta,       s.eta_momenta, moves};
  }

  static Outputs<11> end_cell_step(In& in, EndTensors atoms, Input moves, Input reference_cell,
                                   CellTensors of_cells, BathTensors baths, Input inertia, Input tally,
                                   BathNumbers of, double pressure, double period, double cutoff,
                                   bool flexible) {
    const SystemInputs s(in, atoms.batch, baths, of);
    const CellInputs cells(in, s, of_cells, inertia, {of.dt, of.kT, pressure, period, flexible});
    check_finite(in.op, "cutoff", cutoff);
    const double *of_moves, *of_reference;
    in.take(of_moves, "moves", moves, {s.systems, Moves::kCount});
    in.take(of_reference, "reference_cell", reference_cell, {s.systems, 3, 3});
    double* to_flow;
    Tensor flow = in.result(to_flow, {s.systems, 6});
    return in.for_type_of(atoms.nearest, [&]<class Real>(Real) -> Outputs<11> {
      const SecondHalfInputs<Real> end(in, s, atoms, tally, of.dt);
      const CellSecondHalf<Real> half{end.half,     of_moves,       cells.args.cell,
                                      of_reference, s.sorted.batch, s.systems};
      dispatch_links(s.links, [&](auto links) {
        const CellFinish<links> finish{{cells.args}, end.results, of_reference, to_flow, cutoff};
        end_systems(in.op, s.sorted, half, finish);
      });
      return {end.momenta, end.scale,        end.kinetic, flow,          end.energy, cells.momenta,
              cells.xi,    cells.xi_momenta, s.eta,       s.eta_momenta, end.tally};
    });
  }

  MDOPS_IMPLEMENT(DynamicsOps, begin_step, end_step, next_step, begin_cell_step, end_cell_step)
};

}  // namespace mdops
