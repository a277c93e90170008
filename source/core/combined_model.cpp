// Models of several descriptors, of several models, and of pair tables, on the CPU: each part by its kernels,
// over one list.
#include <algorithm>
#include <limits>

#include "core/combined_data.h"
#include "core/cpu_base.h"
#include "core/extra_descriptors.h"
#include "hybrid_potential/cpu_loops.h"
#include "pair_table/cpu_loops.h"

namespace mdops::core {

namespace {

// The results of a part.
struct Answer {
  std::vector<double> energy, forces, atom_virial, nearest;
  std::vector<int32_t> within;  // (centers, counts of the part's), and of its other descriptors
  std::vector<int32_t> extra_within;
  double virial[9];

  void clear(const Atoms& atoms, double cutoff, int64_t counts, bool of_atoms) {
    energy.assign(atoms.centers, 0.0);
    forces.resize(3 * atoms.all);
    nearest.assign(atoms.centers, cutoff);
    within.assign(atoms.centers * counts, 0);
    atom_virial.resize(of_atoms ? 9 * atoms.all : 0);
    std::fill_n(virial, 9, 0.0);
  }
  double* of_atoms() { return atom_virial.empty() ? nullptr : atom_virial.data(); }
};

class Part {
 public:
  virtual ~Part() = default;
  // With weights of the atoms, or null: energies without them; the other results of the weighted energies.
  virtual void run(const Atoms& atoms, const double* weight, bool of_atoms, Answer& answer) = 0;
  virtual int64_t counts() const = 0;  // of `within`, of an atom
  virtual int64_t extra_counts() const { return 0; }
  const std::vector<Limit>& limits() const { return limits_; }
  const std::vector<Limit>& extra_limits() const { return extra_limits_; }
  const Parameters* parameters[2] = {};  // of frames and atoms

 protected:
  std::vector<Limit> limits_, extra_limits_;
};

// The angle and attention descriptors of a standard model.
template <class T>
ExtraDescriptors<T> read_extra_descriptors(const File& file, const Json& about, const std::string& prefix,
                                           const std::string& precision, int64_t ntypes) {
  ExtraDescriptors<T> extras(static_cast<int>(ntypes));
  const std::vector<Json>& found = extra_descriptors_of(about);
  for (size_t k = 0; k < found.size(); ++k)
    extras.descriptors.push_back(
        make_extra_descriptor<T>(file, found[k], extra_prefix(prefix, k), precision, ntypes));
  return extras;
}

// A standard model: descriptors of sums, and others, with a fitting net.
template <class T>
class StandardPart : public Part {
 public:
  StandardPart(const File& file, const Json& about, const std::string& prefix, const std::string& precision,
               int64_t ntypes)
      : extras_(read_extra_descriptors<T>(file, about, prefix, precision, ntypes)),
        own_(file, about, prefix, precision, ntypes, extras_.width()) {
    limits_ = own_.limits;
    for (size_t k = 0; k < extras_.descriptors.size(); ++k)
      add_limits(extras_.descriptors[k]->data().mixed, extras_.descriptors[k]->data().sel,
                 static_cast<int64_t>(k) * ntypes, static_cast<int>(ntypes), extra_limits_);
    parameters[0] = &own_.inputs.fparam, parameters[1] = &own_.inputs.aparam;
    extra_is_widest_ =
        !extras_.empty() && (own_.sums.empty() || extra_reach() > own_.sums[own_.widest]->cutoff);
    args_.resize(std::max<size_t>(1, own_.sums.size()));
    for (size_t p = 0; p < args_.size(); ++p) {
      PotentialArgs<T>& args = args_[p];
      if (p < own_.sums.size()) own_.sums[p]->set(args), args.net = own_.shapes[p];
      args.ntypes = static_cast<int>(ntypes), args.nets = own_.count, args.systems = 1;
      args.scale = own_.scale.data(), args.shift = own_.shift.data();
    }
  }

  int64_t counts() const override { return static_cast<int64_t>(own_.sums.size()) * args_[0].ntypes; }
  int64_t extra_counts() const override {
    return static_cast<int64_t>(extras_.descriptors.size()) * args_[0].ntypes;
  }

  void run(const Atoms& atoms, const double* weight, bool of_atoms, Answer& answer) override {
    const double cutoff = extra_is_widest_ ? extra_reach() : own_.sums[own_.widest]->cutoff;
    answer.clear(atoms, cutoff, counts(), of_atoms);
    own_.inputs.fill(own_.inputs.fparam.size() ? atoms.fparam : nullptr, atoms.aparam, atoms.types,
                     atoms.centers, extra_, extras_.width());
    grad_extra_.resize(extra_.size());
    extras_.at(atoms, own_.net.extra, extra_.data(), grad_extra_.data());
    nearest_.assign(atoms.centers, static_cast<T>(cutoff));
    for (size_t p = 0; p < args_.size(); ++p) {
      PotentialArgs<T>& args = args_[p];
      atoms.set(args, p < own_.sums.size() && own_.sums[p]->mixed);
      args.extra = extra_.data();
    }
    const HybridArgs<T> args{args_.data(), static_cast<int>(own_.sums.size()), own_.widest, own_.net, weight};
    const StepResults<T> results{atoms.centers,    answer.energy.data(), nullptr,
                                 nearest_.data(),  answer.forces.data(), answer.virial,
                                 answer.of_atoms()};
    hybrid_step("compute", args, own_.nets.data(), results, answer.within.data(), grad_extra_.data(),
                extras_.empty() ? nullptr : &extras_);
    const std::vector<T>& nearest = extra_is_widest_ ? extras_.nearest : nearest_;
    std::copy(nearest.begin(), nearest.end(), answer.nearest.begin());
    answer.extra_within.swap(extras_.within);
  }

 private:
  double extra_reach() const { return extras_.descriptors[extras_.widest()]->data().reach; }

  ExtraDescriptors<T> extras_;
  const StandardWeights<T> own_;
  bool extra_is_widest_ = false;
  std::vector<PotentialArgs<T>> args_;
  std::vector<T> extra_, grad_extra_, nearest_;
};

// A pair table, alone or for near atoms in a blend.
class TablePart : public Part {
 public:
  TablePart(const File& file, const Json& about, const std::string& prefix, int64_t ntypes)
      : own_(file, about, prefix, ntypes), ntypes_(static_cast<int>(ntypes)) {
    limits_ = own_.limits;
  }

  int64_t counts() const override { return ntypes_; }
  double cutoff() const { return own_.table.cutoff; }

  void run(const Atoms& atoms, const double* weight, bool of_atoms, Answer& answer) override {
    answer.clear(atoms, cutoff(), counts(), of_atoms);
    const StepResults<double> results{atoms.centers,         answer.energy.data(), answer.within.data(),
                                      answer.nearest.data(), answer.forces.data(), answer.virial,
                                      answer.of_atoms()};
    table_step("compute", list_of(atoms, ntypes_), own_.table, weight, results);
    for (int64_t i = 0; i < atoms.centers; ++i) answer.energy[i] += bias(atoms.types[i]);
  }

  // Makes another model's sums the blend's, with the atoms' weights of the table.
  void blend(const Atoms& atoms, const double* weight, const NearArgs& near, const BlendedSums& sums) {
    for (int64_t i = 0; i < atoms.centers; ++i) sums.energy[i] -= bias(atoms.types[i]);
    blend_step("compute", list_of(atoms, ntypes_), own_.table, near, weight, atoms.centers, sums);
    for (int64_t i = 0; i < atoms.centers; ++i) sums.energy[i] += bias(atoms.types[i]);
  }

 private:
  double bias(int32_t type) const { return type < 0 ? 0.0 : own_.bias[type]; }

  const TableData own_;
  const int ntypes_;
};

template <class T>
class CombinedModel : public CpuBase {
 public:
  CombinedModel(const File& file, const Json& about, const Request& request)
      : CpuBase(about, request), whole_(file, about, request.precision, ntypes()) {
    cutoff_ = whole_.cutoff, shortest_ = whole_.shortest;
    const auto make = [&](const Json& member, const std::string& prefix,
                          bool is_table) -> std::unique_ptr<Part> {
      if (is_table) return std::make_unique<TablePart>(file, member, prefix, ntypes());
      return std::make_unique<StandardPart<T>>(file, member, prefix, request.precision, ntypes());
    };
    const auto [fparam, aparam] = read_members(about, make, parts_);
    takes(*fparam, *aparam);
    if (whole_.blends) table_ = static_cast<TablePart*>(parts_[1].get());
    set_threads(request.threads);
  }

 protected:
  void evaluate(const Atoms& atoms, mdops_output& output) override {
    begin(atoms, output);
    if (whole_.blends)
      blend(atoms, output);
    else
      sum(atoms, output);
    finish(atoms, output);
  }

 private:
  void begin(const Atoms& atoms, const mdops_output& output) {
    energy_.assign(atoms.centers, 0.0);
    forces_.assign(3 * atoms.all, 0.0);
    of_atoms_ = output.atom_virial;
    atom_virial_.assign(of_atoms_ ? 9 * atoms.all : 0, 0.0);
    std::fill_n(virial_, 9, 0.0);
    nearest_ = cutoff_;
    is_number_ = true;
    counted_.assign(atoms.centers, 1.0);
    for (int64_t i = 0; i < atoms.centers; ++i)
      counted_[i] = atoms.types[i] < 0 ? 0.0 : whole_.has_energy[atoms.types[i]];
  }

  // The atoms' weights; null: 1.
  const double* weights() const { return whole_.all_have_energy ? nullptr : counted_.data(); }

  void add(double factor, const Answer& answer) {
    for (size_t k = 0; k < forces_.size(); ++k) forces_[k] += factor * answer.forces[k];
    for (size_t k = 0; k < atom_virial_.size(); ++k) atom_virial_[k] += factor * answer.atom_virial[k];
    for (int k = 0; k < 9; ++k) virial_[k] += factor * answer.virial[k];
  }

  void sum(const Atoms& atoms, mdops_output& output) {
    for (size_t m = 0; m < parts_.size(); ++m) {
      parts_[m]->run(atoms, weights(), of_atoms_, answer_);
      for (int64_t i = 0; i < atoms.centers; ++i) energy_[i] += whole_.factors[m] * answer_.energy[i];
      add(whole_.factors[m], answer_);
      check_neighbors(atoms, *parts_[m], answer_.within, answer_.nearest, output);
    }
  }

  // The first model far from other atoms, the table near them.
  void blend(const Atoms& atoms, mdops_output& output) {
    const ListArgs list = list_of(atoms, ntypes());
    std::vector<double> near(atoms.centers), far(atoms.centers), table(atoms.centers), closest(atoms.centers);
    std::vector<int32_t> within(atoms.centers * ntypes(), 0);
    const NearReport report{within.data(), closest.data()};
    near_step("compute", list, whole_.near, atoms.centers, near.data(), report);
    if (table_->cutoff() != whole_.near.cutoff) {  // the table reports on the atoms that it reads
      NearArgs reach = whole_.near;
      reach.cutoff = table_->cutoff();
      std::fill(within.begin(), within.end(), 0);
      near_step("compute", list, reach, atoms.centers, far.data(), report);
    }
    bool any = false;
    for (int64_t i = 0; i < atoms.centers; ++i) {
      any |= near[i] != 0;
      far[i] = (1 - near[i]) * counted_[i], table[i] = near[i] * counted_[i];
    }
    parts_[0]->run(atoms, any || !whole_.all_have_energy ? far.data() : nullptr, of_atoms_, answer_);
    add(1, answer_);
    check_neighbors(atoms, *parts_[0], answer_.within, answer_.nearest, output);
    check_neighbors(atoms, *table_, within, closest, output);
    energy_ = answer_.energy;
    if (any)
      table_->blend(atoms, table.data(), whole_.near,
                    {energy_.data(), forces_.data(), virial_, of_atoms_ ? atom_virial_.data() : nullptr});
  }

  // The results on a part's neighbours.
  void check_neighbors(const Atoms& atoms, const Part& part, const std::vector<int32_t>& within,
                       const std::vector<double>& nearest, mdops_output& output) {
    for (int64_t i = 0; i < atoms.centers; ++i) {
      is_number_ &= nearest[i] == nearest[i];
      if (nearest[i] == 0) refuse_place(i, output);
      nearest_ = std::min(nearest_, nearest[i]);
      if (nearest[i] < whole_.closest) refuse_close(i, nearest[i], whole_.closest, output);
      check_places(i, part.limits(), within.data() + i * part.counts(), output);
      check_places(i, part.extra_limits(), answer_.extra_within.data() + i * part.extra_counts(), output);
    }
  }

  void finish(const Atoms& atoms, mdops_output& output) const {
    output.nearest = is_number_ ? nearest_ : std::numeric_limits<double>::quiet_NaN();
    std::copy_n(virial_, 9, output.virial);
    output.energy = 0;
    for (int64_t i = 0; i < atoms.centers; ++i) {
      const int32_t type = atoms.types[i];
      const double energy = type < 0 || !whole_.has_energy[type] ? 0.0 : energy_[i] + whole_.bias[type];
      output.energy += energy;
      if (output.atom_energy) output.atom_energy[i] = energy;
    }
    if (output.forces) std::copy(forces_.begin(), forces_.end(), output.forces);
    if (output.atom_virial) std::copy(atom_virial_.begin(), atom_virial_.end(), output.atom_virial);
  }

  std::vector<std::unique_ptr<Part>> parts_;
  const CombinedData whole_;
  TablePart* table_ = nullptr;  // of a blend

  // Of the last call: memory.
  Answer answer_;
  std::vector<double> energy_, forces_, atom_virial_;
  std::vector<double> counted_;  // 1 for atoms of types that have an energy, 0 for the others
  double virial_[9] = {}, nearest_ = 0;
  bool of_atoms_ = false, is_number_ = true;
};

}  // namespace

std::unique_ptr<Model> combined_model(const File& file, const Json& about, const Request& request) {
  if (request.precision == "float64") return std::make_unique<CombinedModel<double>>(file, about, request);
  return std::make_unique<CombinedModel<float>>(file, about, request);
}

}  // namespace mdops::core
