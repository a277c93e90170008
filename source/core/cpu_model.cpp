#include <algorithm>
#include <limits>

#include "core/cpu_base.h"
#include "core/weights.h"
#include "spline_dipole/cpu_loops.h"
#include "spline_potential/cpu_loops.h"
#include "spline_potential/cpu_nets.h"

namespace mdops::core {

namespace {

template <class T>
class CpuModel : public CpuBase {
 public:
  CpuModel(const File& file, const Json& about, const Request& request, const std::string& prefix)
      : CpuBase(about, request), sums_(file, about, prefix, request.precision, ntypes()) {
    cutoff_ = sums_.cutoff, shortest_ = sums_.shortest;
    add_limits(sums_.mixed, sums_.sel, 0, ntypes(), limits_);
    extra_inputs_.read(file, about, prefix, ntypes());
    takes(extra_inputs_.fparam, extra_inputs_.aparam);
    const FittingNets<T> nets(file, about, prefix, sums_, extra_inputs_.width(), has_dipoles());
    sums_.set(args_);
    of_types_ = bools({has_dipole_.begin(), has_dipole_.end()});
    args_.has_dipole = of_types_.get();
    args_.net = nets.shape, args_.nets = nets.count;
    net_size_ = PackedNet(args_.net, 0).size;
    nets_.resize(nets.count * net_size_);
    for (int k = 0; k < nets.count; ++k) pack(args_.net, 0, nets.layers(k), nets_.data() + k * net_size_);
    scale_ = nets.scale, shift_ = nets.shift;
    args_.scale = scale_.data(), args_.shift = shift_.data();
    set_threads(request.threads);
  }

 protected:
  void evaluate(const Atoms& atoms, mdops_output& output) override {
    const int64_t centers = atoms.centers;
    extra_inputs_.fill(atoms.fparam, atoms.aparam, atoms.types, centers, extra_);

    DipoleArgs<T> args = args_;
    atoms.set(args, sums_.mixed);
    args.extra = extra_.data();

    energy_.assign(centers, 0.0);
    within_.assign(centers * args.ntypes, 0);
    nearest_.assign(centers, args.cutoff.cutoff);
    if (!output.forces) forces_.resize(3 * atoms.all);
    std::fill_n(output.virial, 9, 0.0);
    const StepResults<T> results{centers,
                                 energy_.data(),
                                 within_.data(),
                                 nearest_.data(),
                                 output.forces ? output.forces : forces_.data(),
                                 output.virial,
                                 output.atom_virial};
    if (has_dipoles()) {
      dipole_.assign(output.dipole ? 0 : 3 * centers, 0.0);
      args.field = atoms.field, args.dipole = output.dipole ? output.dipole : dipole_.data();
      std::fill_n(args.dipole, 3 * centers, 0.0);
    }
    const PotentialKernels<T> kernels = has_dipoles() ? dipole_kernels<T>() : prebuilt_kernels<T>();
    potential_step("compute", kernels, args, nets_.data(), net_size_, 0, results);
    checker(output);
    output.energy = 0;
    for (int64_t i = 0; i < centers; ++i) output.energy += energy_[i];
    if (output.atom_energy) std::copy(energy_.begin(), energy_.end(), output.atom_energy);
  }

 private:
  // Sets `nearest`; refuses atoms at one place and, unless told otherwise, more neighbours than places.
  void checker(mdops_output& output) const {
    double nearest = cutoff_;
    bool is_number = true;
    for (int64_t i = 0; i < static_cast<int64_t>(nearest_.size()); ++i) {
      const double own = static_cast<double>(nearest_[i]);
      is_number &= own == own;
      nearest = std::min(nearest, own);
      if (own == 0) refuse_place(i, output);
      check_places(i, limits_, within_.data() + i * sums_.ntypes, output);
    }
    output.nearest = is_number ? nearest : std::numeric_limits<double>::quiet_NaN();
  }

  const DescriptorWeights<T> sums_;
  std::vector<Limit> limits_;
  ExtraInputs<T> extra_inputs_;
  int64_t net_size_ = 0;
  Lines<T> nets_;
  std::vector<double> scale_, shift_;
  std::unique_ptr<bool[]> of_types_;
  DipoleArgs<T> args_{};  // only those of the model

  // Of the last call: memory.
  std::vector<int32_t> within_;
  std::vector<T> extra_, nearest_;
  std::vector<double> energy_, forces_, dipole_;
};

}  // namespace

std::unique_ptr<Model> cpu_model(const File& file, const Json& about, const Request& request,
                                 const std::string& prefix) {
  if (request.precision == "float64") return std::make_unique<CpuModel<double>>(file, about, request, prefix);
  return std::make_unique<CpuModel<float>>(file, about, request, prefix);
}

}  // namespace mdops::core
