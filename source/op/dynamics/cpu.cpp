#include <algorithm>
#include <tuple>
#include <vector>

#include "dynamics/args.h"

namespace mdops {

namespace {

constexpr int64_t kGrain = 4096;

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
    const int32_t* system = s.batch.const_data_ptr<int32_t>();
    for (int64_t k = 0; k < s.systems; ++k) {
      const bool real = std::binary_search(system, system + s.atoms, static_cast<int32_t>(k));
      if (real)
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
  std::vector<Measures> measures(s.systems, Measures::none());
  const int32_t* system = s.batch.const_data_ptr<int32_t>();
  dispatch_float(op, a.nearest.scalar_type(), [&](auto zero) {
    const auto half = a.half<decltype(zero)>();
    for (int64_t i = 0; i < s.atoms; ++i) measures[system[i]].add(half.kick(i));
  });
  dispatch_links(s.links, [&](auto links) {
    const Thermostats<links> bath(s, dt / 2);
    const SystemResults results(a);
    for (int64_t k = 0; k < s.systems; ++k) {
      const bool real = std::binary_search(system, system + s.atoms, static_cast<int32_t>(k));
      if (!real) bath.keep(k);
      results.set(k, measures[k], real ? bath.advance(k, measures[k].kinetic, true) : 1.0);
    }
  });
  return {a.new_momenta, a.scale, a.kinetic, a.energies, s.new_eta, s.new_eta_momenta, a.new_tally};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("begin_step", TORCH_BOX(&mdops::begin_step));
  m.impl("end_step", TORCH_BOX(&mdops::end_step));
}
