// The ops on the steps of dynamics, their arguments checked at entry. A device has `make(name, argument,
// tensor)`, a call of an op; what is done are overloads on that call: begin_systems, end_systems,
// end_and_begin and begin_cells.
#pragma once

#include <tuple>

#include "dynamics/cell_inputs.h"

namespace mdops {

template <class Device>
struct DynamicsOps {
  static std::tuple<Tensor, Tensor, Tensor, Tensor> begin_step(
      const Tensor& positions, const Tensor& momenta, const Tensor& forces, const Tensor& inverse_mass,
      const Tensor& batch, const Tensor& scale, const Tensor& kinetic, const Tensor& eta,
      const Tensor& eta_momenta, const Tensor& freedom, const Tensor& noise, double dt, double kT, double tau,
      double keep) {
    const auto op = Device::make("begin_step", "positions", positions);
    FirstHalfInputs a(op, positions, momenta, forces, inverse_mass, batch, scale, kinetic, eta, eta_momenta,
                      freedom, noise, dt, kT, tau, keep);
    SystemInputs& s = a.systems;
    const FirstHalfArgs args = a.args();
    const ThermostatArgs baths = s.thermostats(dt / 2);
    dispatch_links(s.links, [&](auto links) { begin_systems(op, args, Thermostats<links>{baths}); });
    return {a.new_positions, a.new_momenta, s.new_eta, s.new_eta_momenta};
  }

  static std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> end_step(
      const Tensor& positions, const Tensor& reference, const Tensor& momenta, const Tensor& forces,
      const Tensor& inverse_mass, const Tensor& batch, const Tensor& atom_energy, const Tensor& nearest,
      const Tensor& within, const Tensor& sel, const Tensor& eta, const Tensor& eta_momenta,
      const Tensor& freedom, const Tensor& tally, double dt, double kT, double tau) {
    const auto op = Device::make("end_step", "positions", positions);
    SecondHalfInputs a(op, positions, reference, momenta, forces, inverse_mass, batch, atom_energy, nearest,
                       within, sel, eta, eta_momenta, freedom, tally, dt, kT, tau);
    SystemInputs& s = a.systems;
    dispatch_float(op, a.nearest.scalar_type(), [&](auto zero) {
      dispatch_links(s.links, [&](auto links) {
        end_systems(op, s.sorted(), a.half<decltype(zero)>(), a.finish<links>());
      });
    });
    return {a.new_momenta, a.scale, a.kinetic, a.energies, s.new_eta, s.new_eta_momenta, a.new_tally};
  }

  static NextStep next_step(const Tensor& positions, const Tensor& reference, const Tensor& momenta,
                            const Tensor& forces, const Tensor& inverse_mass, const Tensor& batch,
                            const Tensor& atom_energy, const Tensor& nearest, const Tensor& within,
                            const Tensor& sel, const Tensor& eta, const Tensor& eta_momenta,
                            const Tensor& freedom, const Tensor& tally, const Tensor& noise, double dt,
                            double kT, double tau, double keep) {
    const auto op = Device::make("next_step", "positions", positions);
    NextStepInputs a(op, positions, reference, momenta, forces, inverse_mass, batch, atom_energy, nearest,
                     within, sel, eta, eta_momenta, freedom, tally, noise, dt, kT, tau, keep);
    const SortedAtoms s = a.end.systems.sorted();
    const FirstHalfArgs args = a.begin.args();
    const ThermostatArgs baths = a.begin.systems.thermostats(dt / 2);
    dispatch_links(a.end.systems.links, [&](auto links) {
      const Thermostats<links> bath{baths};
      dispatch_float(op, a.end.nearest.scalar_type(), [&](auto zero) {
        end_and_begin(op, s, a.end.half<decltype(zero)>(), a.end.finish<links>(), args, bath);
      });
    });
    return a.results();
  }

  static BegunInCell begin_cell_step(const Tensor& positions, const Tensor& momenta, const Tensor& forces,
                                     const Tensor& inverse_mass, const Tensor& batch, const Tensor& scale,
                                     const Tensor& flow, const Tensor& virial, const Tensor& cell,
                                     const Tensor& cell_momenta, const Tensor& xi, const Tensor& xi_momenta,
                                     const Tensor& eta, const Tensor& eta_momenta, const Tensor& freedom,
                                     const Tensor& inertia, double dt, double kT, double tau, double pressure,
                                     double period, bool flexible) {
    const auto op = Device::make("begin_cell_step", "positions", positions);
    CellFirstHalfInputs a(op, positions, momenta, forces, inverse_mass, batch, scale, flow, virial, cell,
                          cell_momenta, xi, xi_momenta, eta, eta_momenta, freedom, inertia, dt, kT, tau,
                          pressure, period, flexible);
    const SortedAtoms s = a.plain.sorted();
    dispatch_links(a.plain.links, [&](auto links) { begin_cells(op, s, a.start<links>(), a.half()); });
    return a.results();
  }

  static EndedInCell end_cell_step(const Tensor& positions, const Tensor& reference, const Tensor& momenta,
                                   const Tensor& forces, const Tensor& inverse_mass, const Tensor& batch,
                                   const Tensor& atom_energy, const Tensor& nearest, const Tensor& within,
                                   const Tensor& sel, const Tensor& moves, const Tensor& reference_cell,
                                   const Tensor& virial, const Tensor& cell, const Tensor& cell_momenta,
                                   const Tensor& xi, const Tensor& xi_momenta, const Tensor& eta,
                                   const Tensor& eta_momenta, const Tensor& freedom, const Tensor& inertia,
                                   const Tensor& tally, double dt, double kT, double tau, double pressure,
                                   double period, double cutoff, bool flexible) {
    const auto op = Device::make("end_cell_step", "positions", positions);
    CellSecondHalfInputs a(op, positions, reference, momenta, forces, inverse_mass, batch, atom_energy,
                           nearest, within, sel, moves, reference_cell, virial, cell, cell_momenta, xi,
                           xi_momenta, eta, eta_momenta, freedom, inertia, tally, dt, kT, tau, pressure,
                           period, cutoff, flexible);
    dispatch_float(op, a.atoms.nearest.scalar_type(), [&](auto zero) {
      dispatch_links(a.atoms.systems.links, [&](auto links) {
        end_systems(op, a.atoms.systems.sorted(), a.half<decltype(zero)>(), a.finish<links>());
      });
    });
    return a.results();
  }

  static void implement(torch::stable::detail::StableLibrary& m) {
    m.impl("begin_step", TORCH_BOX(&DynamicsOps::begin_step));
    m.impl("end_step", TORCH_BOX(&DynamicsOps::end_step));
    m.impl("next_step", TORCH_BOX(&DynamicsOps::next_step));
    m.impl("begin_cell_step", TORCH_BOX(&DynamicsOps::begin_cell_step));
    m.impl("end_cell_step", TORCH_BOX(&DynamicsOps::end_cell_step));
  }
};

}  // namespace mdops
