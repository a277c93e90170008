// The ops on the steps of dynamics. A device has begin_systems, end_systems, end_and_begin and begin_cells.
#pragma once

#include "common/bind.h"
#include "dynamics/cell_inputs.h"

namespace mdops {

template <class Device>
struct DynamicsOps {
  using Call = typename Device::Call;

  static Outputs<4> begin_step(const Call& op, FirstHalfInputs& in) {
    SystemInputs& s = in.systems;
    const FirstHalfArgs args = in.args();
    const ThermostatArgs baths = s.thermostats(in.half.dt / 2);
    dispatch_links(s.links, [&](auto links) { begin_systems(op, args, Thermostats<links>{baths}); });
    return {in.new_positions, in.new_momenta, s.new_eta, s.new_eta_momenta};
  }

  static Outputs<7> end_step(const Call& op, SecondHalfInputs& in) {
    SystemInputs& s = in.systems;
    dispatch_float(op, in.nearest.scalar_type(), [&]<class T>(T) {
      dispatch_links(s.links,
                     [&](auto links) { end_systems(op, s.sorted(), in.half<T>(), in.finish<links>()); });
    });
    return {in.new_momenta, in.scale, in.kinetic, in.energies, s.new_eta, s.new_eta_momenta, in.new_tally};
  }

  static Outputs<11> next_step(const Call& op, NextStepInputs& in) {
    const SortedAtoms s = in.end.systems.sorted();
    const FirstHalfArgs args = in.begin.args();
    const ThermostatArgs baths = in.begin.systems.thermostats(in.begin.half.dt / 2);
    dispatch_links(in.end.systems.links, [&](auto links) {
      const Thermostats<links> bath{baths};
      dispatch_float(op, in.end.nearest.scalar_type(), [&]<class T>(T) {
        end_and_begin(op, s, in.end.half<T>(), in.end.finish<links>(), args, bath);
      });
    });
    return in.results();
  }

  static Outputs<9> begin_cell_step(const Call& op, CellFirstHalfInputs& in) {
    const SortedAtoms s = in.plain.sorted();
    dispatch_links(in.plain.links, [&](auto links) { begin_cells(op, s, in.start<links>(), in.half()); });
    return in.results();
  }

  static Outputs<11> end_cell_step(const Call& op, CellSecondHalfInputs& in) {
    dispatch_float(op, in.atoms.nearest.scalar_type(), [&]<class T>(T) {
      dispatch_links(in.atoms.systems.links, [&](auto links) {
        end_systems(op, in.atoms.systems.sorted(), in.half<T>(), in.finish<links>());
      });
    });
    return in.results();
  }

  MDOPS_IMPLEMENT(DynamicsOps, begin_step, end_step, next_step, begin_cell_step, end_cell_step)
};

}  // namespace mdops
