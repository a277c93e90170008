#include "dynamics/cell_inputs.h"
#include "dynamics/cpu_loops.h"

namespace mdops {

namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> begin_step(const Tensor& positions, const Tensor& momenta,
                                                      const Tensor& forces, const Tensor& inverse_mass,
                                                      const Tensor& batch, const Tensor& scale,
                                                      const Tensor& kinetic, const Tensor& eta,
                                                      const Tensor& eta_momenta, const Tensor& freedom,
                                                      const Tensor& noise, double dt, double kT, double tau,
                                                      double keep) {
  FirstHalfInputs a("begin_step", positions, momenta, forces, inverse_mass, batch, scale, kinetic, eta,
                    eta_momenta, freedom, noise, dt, kT, tau, keep);
  SystemInputs& s = a.systems;
  const ThermostatArgs baths = s.thermostats(dt / 2);
  dispatch_links(s.links, [&](auto links) { move_atoms(a.args(), Thermostats<links>{baths}); });
  return {a.new_positions, a.new_momenta, s.new_eta, s.new_eta_momenta};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> end_step(
    const Tensor& positions, const Tensor& reference, const Tensor& momenta, const Tensor& forces,
    const Tensor& inverse_mass, const Tensor& batch, const Tensor& atom_energy, const Tensor& nearest,
    const Tensor& within, const Tensor& sel, const Tensor& eta, const Tensor& eta_momenta,
    const Tensor& freedom, const Tensor& tally, double dt, double kT, double tau) {
  const Op op("end_step");
  SecondHalfInputs a(op, positions, reference, momenta, forces, inverse_mass, batch, atom_energy, nearest,
                     within, sel, eta, eta_momenta, freedom, tally, dt, kT, tau);
  SystemInputs& s = a.systems;
  dispatch_float(op, a.nearest.scalar_type(), [&](auto zero) {
    dispatch_links(s.links,
                   [&](auto links) { end_systems(s.sorted(), a.half<decltype(zero)>(), a.finish<links>()); });
  });
  return {a.new_momenta, a.scale, a.kinetic, a.energies, s.new_eta, s.new_eta_momenta, a.new_tally};
}

NextStep next_step(const Tensor& positions, const Tensor& reference, const Tensor& momenta,
                   const Tensor& forces, const Tensor& inverse_mass, const Tensor& batch,
                   const Tensor& atom_energy, const Tensor& nearest, const Tensor& within, const Tensor& sel,
                   const Tensor& eta, const Tensor& eta_momenta, const Tensor& freedom, const Tensor& tally,
                   const Tensor& noise, double dt, double kT, double tau, double keep) {
  NextStepInputs a("next_step", positions, reference, momenta, forces, inverse_mass, batch, atom_energy,
                   nearest, within, sel, eta, eta_momenta, freedom, tally, noise, dt, kT, tau, keep);
  SystemInputs& s = a.end.systems;
  dispatch_links(s.links, [&](auto links) {
    dispatch_float("next_step", a.end.nearest.scalar_type(), [&](auto zero) {
      end_systems(s.sorted(), a.end.half<decltype(zero)>(), a.end.finish<links>());
    });
    move_atoms(a.begin.args(), Thermostats<links>{a.begin.systems.thermostats(dt / 2)});
  });
  return a.results();
}

BegunInCell begin_cell_step(const Tensor& positions, const Tensor& momenta, const Tensor& forces,
                            const Tensor& inverse_mass, const Tensor& batch, const Tensor& scale,
                            const Tensor& flow, const Tensor& virial, const Tensor& cell,
                            const Tensor& cell_momenta, const Tensor& xi, const Tensor& xi_momenta,
                            const Tensor& eta, const Tensor& eta_momenta, const Tensor& freedom,
                            const Tensor& inertia, double dt, double kT, double tau, double pressure,
                            double period, bool flexible) {
  CellFirstHalfInputs a("begin_cell_step", positions, momenta, forces, inverse_mass, batch, scale, flow,
                        virial, cell, cell_momenta, xi, xi_momenta, eta, eta_momenta, freedom, inertia, dt,
                        kT, tau, pressure, period, flexible);
  dispatch_links(a.plain.links,
                 [&](auto links) { move_cells(a.plain.sorted(), a.start<links>(), a.half()); });
  return a.results();
}

EndedInCell end_cell_step(const Tensor& positions, const Tensor& reference, const Tensor& momenta,
                          const Tensor& forces, const Tensor& inverse_mass, const Tensor& batch,
                          const Tensor& atom_energy, const Tensor& nearest, const Tensor& within,
                          const Tensor& sel, const Tensor& moves, const Tensor& reference_cell,
                          const Tensor& virial, const Tensor& cell, const Tensor& cell_momenta,
                          const Tensor& xi, const Tensor& xi_momenta, const Tensor& eta,
                          const Tensor& eta_momenta, const Tensor& freedom, const Tensor& inertia,
                          const Tensor& tally, double dt, double kT, double tau, double pressure,
                          double period, double cutoff, bool flexible) {
  const Op op("end_cell_step");
  CellSecondHalfInputs a(op, positions, reference, momenta, forces, inverse_mass, batch, atom_energy, nearest,
                         within, sel, moves, reference_cell, virial, cell, cell_momenta, xi, xi_momenta, eta,
                         eta_momenta, freedom, inertia, tally, dt, kT, tau, pressure, period, cutoff,
                         flexible);
  dispatch_float(op, a.atoms.nearest.scalar_type(), [&](auto zero) {
    dispatch_links(a.atoms.systems.links, [&](auto links) {
      end_systems(a.atoms.systems.sorted(), a.half<decltype(zero)>(), a.finish<links>());
    });
  });
  return a.results();
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("begin_step", TORCH_BOX(&mdops::begin_step));
  m.impl("end_step", TORCH_BOX(&mdops::end_step));
  m.impl("next_step", TORCH_BOX(&mdops::next_step));
  m.impl("begin_cell_step", TORCH_BOX(&mdops::begin_cell_step));
  m.impl("end_cell_step", TORCH_BOX(&mdops::end_cell_step));
}
