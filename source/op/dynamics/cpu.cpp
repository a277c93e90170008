#include <algorithm>
#include <tuple>
#include <vector>

#include "dynamics/cell_args.h"

namespace mdops {

namespace {

constexpr int64_t kGrain = 4096;

bool occupied(const StepSystems& s, int64_t system) {
  const int32_t* batch = s.batch.const_data_ptr<int32_t>();
  return std::binary_search(batch, batch + s.atoms, static_cast<int32_t>(system));
}

// The second half of a step: what is measured of the atoms of each system goes into its results.
template <class Half, class Finish>
void end_systems(const StepSystems& s, const Half& half, const Finish& finish) {
  using Measured = typename Half::Measured;
  std::vector<Measured> measures(s.systems, Measured::none());
  const int32_t* system = s.batch.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < s.atoms; ++i) measures[system[i]].add(half.kick(i));
  for (int64_t k = 0; k < s.systems; ++k)
    for (int which = 0; which < Finish::kThreads; ++which) finish.set(which, k, measures[k], occupied(s, k));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> begin_step(const Tensor& positions, const Tensor& momenta,
                                                      const Tensor& forces, const Tensor& inverse_mass,
                                                      const Tensor& batch, const Tensor& scale,
                                                      const Tensor& kinetic, const Tensor& eta,
                                                      const Tensor& eta_momenta, const Tensor& freedom,
                                                      const Tensor& noise, double dt, double kT, double tau,
                                                      double keep) {
  BeginArgs a("begin_step", positions, momenta, forces, inverse_mass, batch, scale, kinetic, eta, eta_momenta,
              freedom, noise, dt, kT, tau, keep);
  StepSystems& s = a.systems;
  std::vector<double> factor(s.systems);
  dispatch_links(s.links, [&](auto links) {
    const Thermostats<links> bath(s, dt / 2);
    for (int64_t k = 0; k < s.systems; ++k) {
      if (occupied(s, k))
        factor[k] = a.scale.const_data_ptr<double>()[k] *
                    bath.advance(k, a.kinetic.const_data_ptr<double>()[k], true);
      else
        bath.keep(k);
    }
  });
  const double *x = a.positions.const_data_ptr<double>(), *p = a.momenta.const_data_ptr<double>();
  const double *f = a.forces.const_data_ptr<double>(), *w = a.inverse_mass.const_data_ptr<double>();
  const double* xi = a.noise_data();
  const int32_t* system = s.batch.const_data_ptr<int32_t>();
  double *new_x = a.new_positions.mutable_data_ptr<double>(),
         *new_p = a.new_momenta.mutable_data_ptr<double>();
  parallel(s.atoms, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t k = 3 * begin; k < 3 * end; ++k) {
      const int64_t i = k / 3;
      new_x[k] = x[k], new_p[k] = p[k];
      a.half.move(factor[system[i]], f[k], w[i], xi ? xi + k : nullptr, new_x + k, new_p + k);
    }
  });
  return {a.new_positions, a.new_momenta, s.new_eta, s.new_eta_momenta};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> end_step(
    const Tensor& positions, const Tensor& reference, const Tensor& momenta, const Tensor& forces,
    const Tensor& inverse_mass, const Tensor& batch, const Tensor& atom_energy, const Tensor& nearest,
    const Tensor& within, const Tensor& sel, const Tensor& eta, const Tensor& eta_momenta,
    const Tensor& freedom, const Tensor& tally, double dt, double kT, double tau) {
  const Op op("end_step");
  EndArgs a(op, positions, reference, momenta, forces, inverse_mass, batch, atom_energy, nearest, within, sel,
            eta, eta_momenta, freedom, tally, dt, kT, tau);
  StepSystems& s = a.systems;
  dispatch_float(op, a.nearest.scalar_type(), [&](auto zero) {
    dispatch_links(s.links, [&](auto links) {
      end_systems(s, a.half<decltype(zero)>(),
                  Finish<links>{Thermostats<links>(s, dt / 2), SystemResults(a)});
    });
  });
  return {a.new_momenta, a.scale, a.kinetic, a.energies, s.new_eta, s.new_eta_momenta, a.new_tally};
}

BegunInCell begin_cell_step(const Tensor& positions, const Tensor& momenta, const Tensor& forces,
                            const Tensor& inverse_mass, const Tensor& batch, const Tensor& scale,
                            const Tensor& flow, const Tensor& virial, const Tensor& cell,
                            const Tensor& cell_momenta, const Tensor& xi, const Tensor& xi_momenta,
                            const Tensor& eta, const Tensor& eta_momenta, const Tensor& freedom,
                            const Tensor& inertia, double dt, double kT, double tau, double pressure,
                            double period, bool flexible) {
  CellBeginArgs a("begin_cell_step", positions, momenta, forces, inverse_mass, batch, scale, flow, virial,
                  cell, cell_momenta, xi, xi_momenta, eta, eta_momenta, freedom, inertia, dt, kT, tau,
                  pressure, period, flexible);
  const StepSystems& s = a.plain;
  dispatch_links(s.links, [&](auto links) {
    const CellStart<links> start = a.start<links>();
    for (int64_t k = 0; k < s.systems; ++k) {
      const bool real = occupied(s, k);
      const double of_atoms = real ? start.factor(0, k) : 1, of_cell = real ? start.factor(1, k) : 1;
      for (int which = 0; which < 2; ++which)
        real ? start.set(which, k, of_atoms, of_cell) : start.keep(which, k);
    }
  });
  const CellFirstHalf half = a.half();
  const int32_t* system = s.batch.const_data_ptr<int32_t>();
  parallel(s.atoms, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) half.move(i, system[i]);
  });
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
  CellEndArgs a(op, positions, reference, momenta, forces, inverse_mass, batch, atom_energy, nearest, within,
                sel, moves, reference_cell, virial, cell, cell_momenta, xi, xi_momenta, eta, eta_momenta,
                freedom, inertia, tally, dt, kT, tau, pressure, period, cutoff, flexible);
  dispatch_float(op, a.atoms.nearest.scalar_type(), [&](auto zero) {
    dispatch_links(a.atoms.systems.links, [&](auto links) {
      end_systems(a.atoms.systems, a.half<decltype(zero)>(), a.finish<links>());
    });
  });
  return a.results();
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("begin_step", TORCH_BOX(&mdops::begin_step));
  m.impl("end_step", TORCH_BOX(&mdops::end_step));
  m.impl("begin_cell_step", TORCH_BOX(&mdops::begin_cell_step));
  m.impl("end_cell_step", TORCH_BOX(&mdops::end_cell_step));
}
