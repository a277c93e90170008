#include <tuple>

#include "common/cuda.h"
#include "dynamics/cell_inputs.h"
#include "dynamics/gpu_kernels.h"

namespace mdops {

namespace {

using namespace gpu_dynamics;

// The second half of a step, in two kernels or one.
bool are_few(const SortedAtoms& s) {
  return s.atoms <= kFewAtoms && s.systems <= kFewSystems;
}

template <class Half, class Finish>
void end_systems(const CudaOp& op, const SortedAtoms& s, const Half& half, const Finish& finish) {
  using Measured = typename Half::Measured;
  if (are_few(s))
    return op.launch_early(end_few<Half, Finish>, s.systems ? 1 : 0, kThreads, 0, half, s.batch, s.atoms,
                           s.systems, finish);
  const int64_t windows = blocks_for(s.atoms, kWarp), places = windows + s.systems;
  const Tensor memory =
      empty(op, {places * static_cast<int64_t>(sizeof(Measured) / sizeof(double))}, ScalarType::Double);
  Measured* parts = reinterpret_cast<Measured*>(const_cast<void*>(memory.data_ptr()));
  // Few atoms are spread over the multiprocessors.
  const int few = windows > 4096 ? kThreads : kWarp;
  op.launch_early(second_half<Half>, blocks_for(windows * kWarp, few), few, 0, half, s.batch, s.atoms,
                  s.systems, parts);
  const int threads = windows > kFewParts * s.systems ? kThreads : kWarp;
  op.launch_early(finish_systems<Measured, Finish>, s.systems, threads, 0, parts, s.batch, s.atoms, s.systems,
                  finish);
}

template <int Links>
void begin_systems(const CudaOp& op, const FirstHalfArgs& args, const Thermostats<Links>& bath) {
  const SortedAtoms& s = args.sorted;
  op.launch_early(first_half<Links>, blocks_for(s.atoms > s.systems ? s.atoms : s.systems, kThreads),
                  kThreads, 0, args, bath);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> begin_step(const Tensor& positions, const Tensor& momenta,
                                                      const Tensor& forces, const Tensor& inverse_mass,
                                                      const Tensor& batch, const Tensor& scale,
                                                      const Tensor& kinetic, const Tensor& eta,
                                                      const Tensor& eta_momenta, const Tensor& freedom,
                                                      const Tensor& noise, double dt, double kT, double tau,
                                                      double keep) {
  const CudaOp op("begin_step", "positions", positions);
  FirstHalfInputs a(op, positions, momenta, forces, inverse_mass, batch, scale, kinetic, eta, eta_momenta,
                    freedom, noise, dt, kT, tau, keep);
  SystemInputs& s = a.systems;
  const FirstHalfArgs args = a.args();
  const ThermostatArgs baths = s.thermostats(dt / 2);
  dispatch_links(s.links, [&](auto links) { begin_systems(op, args, Thermostats<links>{baths}); });
  return {a.new_positions, a.new_momenta, s.new_eta, s.new_eta_momenta};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> end_step(
    const Tensor& positions, const Tensor& reference, const Tensor& momenta, const Tensor& forces,
    const Tensor& inverse_mass, const Tensor& batch, const Tensor& atom_energy, const Tensor& nearest,
    const Tensor& within, const Tensor& sel, const Tensor& eta, const Tensor& eta_momenta,
    const Tensor& freedom, const Tensor& tally, double dt, double kT, double tau) {
  const CudaOp op("end_step", "positions", positions);
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

NextStep next_step(const Tensor& positions, const Tensor& reference, const Tensor& momenta,
                   const Tensor& forces, const Tensor& inverse_mass, const Tensor& batch,
                   const Tensor& atom_energy, const Tensor& nearest, const Tensor& within, const Tensor& sel,
                   const Tensor& eta, const Tensor& eta_momenta, const Tensor& freedom, const Tensor& tally,
                   const Tensor& noise, double dt, double kT, double tau, double keep) {
  const CudaOp op("next_step", "positions", positions);
  NextStepInputs a(op, positions, reference, momenta, forces, inverse_mass, batch, atom_energy, nearest,
                   within, sel, eta, eta_momenta, freedom, tally, noise, dt, kT, tau, keep);
  const SortedAtoms s = a.end.systems.sorted();
  const FirstHalfArgs args = a.begin.args();
  const ThermostatArgs baths = a.begin.systems.thermostats(dt / 2);
  dispatch_links(a.end.systems.links, [&](auto links) {
    const Thermostats<links> bath{baths};
    dispatch_float(op, a.end.nearest.scalar_type(), [&](auto zero) {
      using Half = SecondHalf<decltype(zero)>;
      if (are_few(s))
        op.launch_early(next_few<Half, links>, s.systems ? 1 : 0, kThreads, 0, a.end.half<decltype(zero)>(),
                        a.end.finish<links>(), args, bath);
      else
        end_systems(op, s, a.end.half<decltype(zero)>(), a.end.finish<links>());
    });
    if (!are_few(s)) begin_systems(op, args, bath);
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
  const CudaOp op("begin_cell_step", "positions", positions);
  CellFirstHalfInputs a(op, positions, momenta, forces, inverse_mass, batch, scale, flow, virial, cell,
                        cell_momenta, xi, xi_momenta, eta, eta_momenta, freedom, inertia, dt, kT, tau,
                        pressure, period, flexible);
  const SortedAtoms s = a.plain.sorted();
  dispatch_links(a.plain.links, [&](auto links) {
    op.launch_early(start_cells<CellStart<links>>, s.systems, kWarp, 0, a.start<links>(), s.batch, s.atoms);
  });
  op.launch_early(first_half_in_cell, blocks_for(s.atoms, kThreads), kThreads, 0, a.half(), s.batch, s.atoms,
                  s.systems);
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
  const CudaOp op("end_cell_step", "positions", positions);
  CellSecondHalfInputs a(op, positions, reference, momenta, forces, inverse_mass, batch, atom_energy, nearest,
                         within, sel, moves, reference_cell, virial, cell, cell_momenta, xi, xi_momenta, eta,
                         eta_momenta, freedom, inertia, tally, dt, kT, tau, pressure, period, cutoff,
                         flexible);
  dispatch_float(op, a.atoms.nearest.scalar_type(), [&](auto zero) {
    dispatch_links(a.atoms.systems.links, [&](auto links) {
      end_systems(op, a.atoms.systems.sorted(), a.half<decltype(zero)>(), a.finish<links>());
    });
  });
  return a.results();
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("begin_step", TORCH_BOX(&mdops::begin_step));
  m.impl("end_step", TORCH_BOX(&mdops::end_step));
  m.impl("next_step", TORCH_BOX(&mdops::next_step));
  m.impl("begin_cell_step", TORCH_BOX(&mdops::begin_cell_step));
  m.impl("end_cell_step", TORCH_BOX(&mdops::end_cell_step));
}
