// The arguments of both halves of a step at the ops' entry, and their results: checked here, for both
// devices.
#pragma once

#include <cmath>
#include <limits>

#include "common/bind.h"
#include "common/pair_checks.h"
#include "dynamics/args.h"

namespace mdops {

// Atoms that are sorted by their systems, and the thermostats of these.
struct SystemInputs {
  Tensor batch, eta, eta_momenta, freedom;
  int64_t atoms = batch.size(0), systems = eta.size(0), links = eta.size(1);
  double kT, tau;
  Tensor new_eta, new_eta_momenta;

  SystemInputs(const Op& op, const Tensor& batch_, const Tensor& eta_, const Tensor& eta_momenta_,
               const Tensor& freedom_, double kT_, double tau_)
      : batch(input(op, "batch", batch_, ScalarType::Int, {kAny})),
        eta(input(op, "eta", eta_, ScalarType::Double, {kAny, kAny})),
        eta_momenta(input(op, "eta_momenta", eta_momenta_, ScalarType::Double, {eta.size(0), eta.size(1)})),
        freedom(input(op, "freedom", freedom_, ScalarType::Double, {eta.size(0)})),
        kT(kT_),
        tau(tau_),
        new_eta(empty(op, {systems, links}, ScalarType::Double)),
        new_eta_momenta(empty(op, {systems, links}, ScalarType::Double)) {
    constexpr int64_t most = std::numeric_limits<int32_t>::max();
    if (atoms > most || systems > most) fail(op, "atoms and systems must fit into 32-bit indices");
    if (links > kMostLinks)
      fail(op, "argument `eta` has chains of ", links, " thermostats, expected at most ", kMostLinks);
    if (links > 0) check_positive(op, "kT", kT), check_positive(op, "tau", tau);
    check_range(op, "batch", batch, 0, systems);
    if (op.on_cpu()) check_values(op);
  }

  SortedAtoms sorted() const {
    return {data_of(batch), static_cast<int32_t>(atoms), static_cast<int32_t>(systems)};
  }

  ThermostatArgs thermostats(double time) {
    ThermostatArgs a{};
    a.eta = data_of(eta), a.p = data_of(eta_momenta), a.freedom = data_of(freedom);
    a.new_eta = data_of(new_eta), a.new_p = data_of(new_eta_momenta), a.kT = kT, a.tau = tau, a.time = time;
    return a;
  }

  static void check_positive(const Op& op, const std::string& name, double value) {
    if (!(value > 0 && std::isfinite(value)))
      fail(op, "argument `", name, "` is ", value, ", expected more than 0");
  }

 private:
  void check_values(const Op& op) const {
    const int32_t* s = batch.const_data_ptr<int32_t>();
    for (int64_t i = 1; i < atoms; ++i)
      if (s[i] < s[i - 1])
        fail(op, "argument `batch` falls from atom ", i - 1,
             " to the next: the atoms must be sorted by system");
    for (int64_t k = 0; k < systems && links > 0; ++k)
      check_positive(op, "freedom[" + std::to_string(k) + "]", freedom.const_data_ptr<double>()[k]);
  }
};

inline void check_finite(const Op& op, const char* name, double value) {
  if (!std::isfinite(value)) fail(op, "argument `", name, "` is not finite");
}

struct FirstHalfInputs {
  static constexpr const char* kFirst = "positions";
  using Given = Listed<Times<11, const Tensor&>, Times<4, double>>;

  SystemInputs systems;
  Tensor positions, momenta, forces, inverse_mass, scale, kinetic, noise;
  FirstHalf half;
  Tensor new_positions, new_momenta;

  FirstHalfInputs(const Op& op, const Tensor& positions_, const Tensor& momenta_, const Tensor& forces_,
                  const Tensor& inverse_mass_, const Tensor& batch, const Tensor& scale_,
                  const Tensor& kinetic_, const Tensor& eta, const Tensor& eta_momenta, const Tensor& freedom,
                  const Tensor& noise_, double dt, double kT, double tau, double keep)
      : systems(op, batch, eta, eta_momenta, freedom, kT, tau),
        positions(input(op, "positions", positions_, ScalarType::Double, {systems.atoms, 3})),
        momenta(input(op, "momenta", momenta_, ScalarType::Double, {systems.atoms, 3})),
        forces(input(op, "forces", forces_, ScalarType::Double, {systems.atoms, 3})),
        inverse_mass(input(op, "inverse_mass", inverse_mass_, ScalarType::Double, {systems.atoms})),
        scale(input(op, "scale", scale_, ScalarType::Double, {systems.systems})),
        kinetic(input(op, "kinetic", kinetic_, ScalarType::Double, {systems.systems})),
        noise(input(op, "noise", noise_, ScalarType::Double, {kAny, 3})),
        half{dt, keep, std::sqrt((1 - keep * keep) * kT)},
        new_positions(empty(op, {systems.atoms, 3}, ScalarType::Double)),
        new_momenta(empty(op, {systems.atoms, 3}, ScalarType::Double)) {
    check_finite(op, "dt", dt);
    if (noise.size(0) != 0 && noise.size(0) != systems.atoms)
      fail(op, "argument `noise` has ", noise.size(0), " rows, expected ", systems.atoms, ", or none");
    if (noise.size(0) != 0 && !(keep >= 0 && keep <= 1 && kT >= 0 && std::isfinite(kT)))
      fail(op, "arguments `keep` and `kT` are ", keep, " and ", kT, ", expected 0 to 1, and not negative");
  }

  FirstHalfArgs args() {
    FirstHalfArgs a{};
    a.positions = data_of(positions), a.momenta = data_of(momenta), a.forces = data_of(forces);
    a.inverse_mass = data_of(inverse_mass), a.scale = data_of(scale), a.kinetic = data_of(kinetic);
    a.noise = data_of(noise.size(0) ? &noise : nullptr), a.sorted = systems.sorted(), a.half = half;
    a.new_positions = data_of(new_positions), a.new_momenta = data_of(new_momenta);
    return a;
  }
};

struct SecondHalfInputs {
  static constexpr const char* kFirst = "positions";
  using Given = Listed<Times<14, const Tensor&>, Times<3, double>>;

  SystemInputs systems;
  Tensor positions, reference, momenta, forces, inverse_mass, energy, nearest, within, sel, tally;
  double dt;
  Tensor new_momenta, scale, kinetic, energies, new_tally;

  SecondHalfInputs(const Op& op, const Tensor& positions_, const Tensor& reference_, const Tensor& momenta_,
                   const Tensor& forces_, const Tensor& inverse_mass_, const Tensor& batch,
                   const Tensor& energy_, const Tensor& nearest_, const Tensor& within_, const Tensor& sel_,
                   const Tensor& eta, const Tensor& eta_momenta, const Tensor& freedom, const Tensor& tally_,
                   double dt_, double kT, double tau)
      : systems(op, batch, eta, eta_momenta, freedom, kT, tau),
        positions(input(op, "positions", positions_, ScalarType::Double, {systems.atoms, 3})),
        reference(input(op, "reference", reference_, ScalarType::Double, {systems.atoms, 3})),
        momenta(input(op, "momenta", momenta_, ScalarType::Double, {systems.atoms, 3})),
        forces(input(op, "forces", forces_, ScalarType::Double, {systems.atoms, 3})),
        inverse_mass(input(op, "inverse_mass", inverse_mass_, ScalarType::Double, {systems.atoms})),
        energy(input(op, "atom_energy", energy_, ScalarType::Double, {systems.atoms})),
        nearest(float_input(op, "nearest", nearest_, {systems.atoms})),
        within(input(op, "within", within_, ScalarType::Int, {systems.atoms, kAny})),
        sel(input(op, "sel", sel_, ScalarType::Int, {within.size(1)})),
        tally(input(op, "tally", tally_, ScalarType::Double, {systems.systems, kTally})),
        dt(dt_),
        new_momenta(empty(op, {systems.atoms, 3}, ScalarType::Double)),
        scale(empty(op, {systems.systems}, ScalarType::Double)),
        kinetic(empty(op, {systems.systems}, ScalarType::Double)),
        energies(empty(op, {systems.systems}, ScalarType::Double)),
        new_tally(empty(op, {systems.systems, kTally}, ScalarType::Double)) {
    check_finite(op, "dt", dt);
  }

  template <class Real>
  SecondHalf<Real> half() {
    SecondHalf<Real> a{};
    a.positions = data_of(positions), a.reference = data_of(reference), a.momenta = data_of(momenta);
    a.forces = data_of(forces), a.inverse_mass = data_of(inverse_mass), a.energy = data_of(energy);
    a.nearest = data_of(nearest), a.within = data_of(within), a.sel = data_of(sel), a.ntypes = within.size(1);
    a.dt = dt, a.new_momenta = data_of(new_momenta);
    return a;
  }

  SystemResults results() {
    return {data_of(tally), data_of(scale), data_of(kinetic), data_of(energies), data_of(new_tally)};
  }

  template <int Links>
  Finish<Links> finish() {
    return {{systems.thermostats(dt / 2)}, results()};
  }
};

// What `next_step` takes: the first half begins with what the second one gives.
struct NextStepInputs {
  static constexpr const char* kFirst = "positions";
  using Given = Listed<Times<15, const Tensor&>, Times<4, double>>;

  SecondHalfInputs end;
  FirstHalfInputs begin;

  NextStepInputs(const Op& op, const Tensor& positions, const Tensor& reference, const Tensor& momenta,
                 const Tensor& forces, const Tensor& inverse_mass, const Tensor& batch,
                 const Tensor& atom_energy, const Tensor& nearest, const Tensor& within, const Tensor& sel,
                 const Tensor& eta, const Tensor& eta_momenta, const Tensor& freedom, const Tensor& tally,
                 const Tensor& noise, double dt, double kT, double tau, double keep)
      : end(op, positions, reference, momenta, forces, inverse_mass, batch, atom_energy, nearest, within, sel,
            eta, eta_momenta, freedom, tally, dt, kT, tau),
        begin(op, end.positions, end.new_momenta, end.forces, end.inverse_mass, end.systems.batch, end.scale,
              end.kinetic, end.systems.new_eta, end.systems.new_eta_momenta, end.systems.freedom, noise, dt,
              kT, tau, keep) {}

  Outputs<11> results() const {
    return {end.new_momenta,
            end.scale,
            end.kinetic,
            end.energies,
            end.systems.new_eta,
            end.systems.new_eta_momenta,
            end.new_tally,
            begin.new_positions,
            begin.new_momenta,
            begin.systems.new_eta,
            begin.systems.new_eta_momenta};
  }
};

}  // namespace mdops
