// Models of several descriptors, of several models, and of pair tables, on the CPU: each part by its kernels,
// over one list.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/cpu_base.h"
#include "core/error.h"
#include "core/weights.h"
#include "hybrid_potential/cpu_loops.h"
#include "pair_table/cpu_loops.h"

namespace mdops::core {

namespace {

// What a part says.
struct Answer {
  std::vector<double> energy, forces, atom_virial, nearest;
  std::vector<int32_t> within;  // (centers, counts of the part's)
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

// How many neighbours a part has places for: within[first, first + count) of an atom, all together, or one
// type's, t; t is -1 for all.
struct Limit {
  int64_t first, count, places;
  int t;
};

class Part {
 public:
  virtual ~Part() = default;
  // With weights of the atoms, or null: energies without them, the rest of the sum of weighted energies.
  virtual void run(const Atoms& atoms, const double* weight, bool of_atoms, Answer& answer) = 0;
  virtual int64_t counts() const = 0;  // of `within`, of an atom
  const std::vector<Limit>& limits() const { return limits_; }
  const Parameters* parameters[2] = {};  // of frames and atoms

 protected:
  std::vector<Limit> limits_;
};

// A standard model: descriptors of sums with a fitting net.
template <class T>
class SumsPart : public Part {
 public:
  SumsPart(const File& file, const Json& about, const std::string& prefix, const std::string& precision,
           int64_t ntypes) {
    std::vector<int64_t> neurons, residual;
    for (const Json& n : about.at("neurons").as_list()) neurons.push_back(n.as_integer());
    for (const Json& adds : about.at("residual").as_list()) residual.push_back(adds.as_bool());
    const std::vector<Json>& parts = about.at("descriptors").as_list();
    if (parts.empty() || parts.size() > kMostParts) damaged("it has no descriptor, or too many");
    std::vector<FittingShape> shapes;
    for (size_t p = 0; p < parts.size(); ++p) {
      sums_.push_back(
          std::make_unique<Sums<T>>(file, parts[p], prefix + std::to_string(p) + ".", precision, ntypes));
      shapes.push_back(fitting_shape("load", sums_[p]->width, sums_[p]->axis, neurons, 0));
      if (sums_[p]->cutoff > sums_[widest_]->cutoff) widest_ = static_cast<int>(p);
      add_limits(*sums_[p], static_cast<int64_t>(p) * ntypes);
    }
    inputs_.read(file, about, prefix, ntypes);
    parameters[0] = &inputs_.fparam, parameters[1] = &inputs_.aparam;
    FittingShape layers = shapes[0];
    set_layers("load", residual, about.at("activation").as_integer(), about.at("threshold").as_number(),
               layers);
    const std::string problem = shape_refusal(sums_[0]->width, sums_[0]->axis, neurons, inputs_.width());
    if (!problem.empty()) damaged(problem);
    net_ = net_behind(shapes, layers, inputs_.width());
    const std::vector<int64_t>& dims = file.array(prefix + "nets").shape;
    const int64_t nets = dims.empty() ? 0 : dims[0];
    if (nets != 1 && nets != ntypes) damaged("its nets are not one a type, or one for all");
    nets_ = file.numbers<T>(prefix + "nets", {nets, net_size(net_)});
    scale_ = file.numbers<double>(prefix + "scale", {nets});
    shift_ = file.numbers<double>(prefix + "shift", {ntypes});
    for (size_t p = 0; p < parts.size(); ++p) {
      PotentialArgs<T> args{};
      sums_[p]->set(args);
      args.net = shapes[p], args.nets = static_cast<int>(nets), args.systems = 1;
      args.scale = scale_.data(), args.shift = shift_.data();
      args_.push_back(args);
    }
  }

  int64_t counts() const override { return static_cast<int64_t>(sums_.size()) * args_[0].ntypes; }

  void run(const Atoms& atoms, const double* weight, bool of_atoms, Answer& answer) override {
    const double cutoff = sums_[widest_]->cutoff;
    answer.clear(atoms, cutoff, counts(), of_atoms);
    inputs_.fill(inputs_.fparam.size() ? atoms.fparam : nullptr, atoms.aparam, atoms.types, atoms.centers,
                 extra_);
    grad_extra_.resize(extra_.size());
    nearest_.assign(atoms.centers, static_cast<T>(cutoff));
    for (size_t p = 0; p < args_.size(); ++p) {
      PotentialArgs<T>& args = args_[p];
      args.positions = atoms.places, args.cell = atoms.cell;
      args.batch = atoms.systems, args.types = atoms.types;
      args.neighbors = atoms.rows->neighbors.data(), args.images = atoms.rows->images.data();
      args.counts = atoms.rows->counts.data(), args.list_width = atoms.rows->width;
      args.places.padding = sums_[p]->mixed ? atoms.systems : nullptr;  // of type 0, as mean is zero
      args.extra = extra_.data(), args.atoms = atoms.all;
    }
    const HybridArgs<T> args{args_.data(), static_cast<int>(args_.size()), widest_, net_, weight};
    const StepResults<T> results{atoms.centers,    answer.energy.data(), nullptr,
                                 nearest_.data(),  answer.forces.data(), answer.virial,
                                 answer.of_atoms()};
    hybrid_step("compute", args, nets_.data(), results, answer.within.data(), grad_extra_.data());
    std::copy(nearest_.begin(), nearest_.end(), answer.nearest.begin());
  }

 private:
  void add_limits(const Sums<T>& sums, int64_t first) {
    if (sums.mixed) limits_.push_back({first, sums.ntypes, sums.sel[0], -1});
    for (int t = 0; !sums.mixed && t < sums.ntypes; ++t) limits_.push_back({first + t, 1, sums.sel[t], t});
  }

  std::vector<std::unique_ptr<Sums<T>>> sums_;
  int widest_ = 0;
  ExtraInputs<T> inputs_;
  NetShape net_{};
  std::vector<T> nets_;
  std::vector<double> scale_, shift_;
  std::vector<PotentialArgs<T>> args_;
  std::vector<T> extra_, grad_extra_, nearest_;
};

ListArgs list_of(const Atoms& atoms, int ntypes) {
  const Rows& rows = *atoms.rows;
  return {atoms.positions,
          atoms.cell,
          atoms.systems,
          atoms.types,
          rows.neighbors.data(),
          rows.images.data(),
          rows.counts.data(),
          atoms.all,
          1,
          rows.width,
          ntypes};
}

double positive(const Json& about, const char* name) {
  const double value = about.at(name).as_number();
  if (!(value > 0)) damaged(std::string("its `") + name + "` is not positive");
  return value;
}

// A pair table, alone or as what a blend has near atoms.
class TablePart : public Part {
 public:
  TablePart(const File& file, const Json& about, const std::string& prefix, int64_t ntypes)
      : mask_(bools(file.flags(prefix + "pair_mask", {ntypes, ntypes}))),
        coefficients_(file.numbers<double>(prefix + "coefficients", {ntypes, ntypes, -1, 4})),
        bias_(file.numbers<double>(prefix + "bias", {ntypes})),
        ntypes_(static_cast<int>(ntypes)) {
    table_ = {mask_.get(),
              coefficients_.data(),
              file.array(prefix + "coefficients").shape[2],
              about.at("first").as_number(),
              positive(about, "step"),
              positive(about, "cutoff")};
    if (table_.intervals < 1 || !(table_.first >= 0))
      damaged("its pair table has no rows, or begins below 0");
    limits_.push_back({0, ntypes, about.at("sel").as_integer(), -1});
  }

  int64_t counts() const override { return ntypes_; }
  double cutoff() const { return table_.cutoff; }

  void run(const Atoms& atoms, const double* weight, bool of_atoms, Answer& answer) override {
    blend(atoms, weight, nullptr, nullptr, of_atoms, answer);
  }

  // The same with energies of another model, whose part of the weights' slopes this has; or null.
  void blend(const Atoms& atoms, const double* weight, const double* other, const NearArgs* near,
             bool of_atoms, Answer& answer) {
    answer.clear(atoms, table_.cutoff, counts(), of_atoms);
    if (other) {
      other_.assign(other, other + atoms.centers);
      for (int64_t i = 0; i < atoms.centers; ++i) other_[i] -= bias(atoms.types[i]);
    }
    const StepResults<double> results{atoms.centers,         answer.energy.data(), answer.within.data(),
                                      answer.nearest.data(), answer.forces.data(), answer.virial,
                                      answer.of_atoms()};
    table_step("compute", list_of(atoms, ntypes_), table_, {weight, other ? other_.data() : nullptr, near},
               results);
    for (int64_t i = 0; i < atoms.centers; ++i) answer.energy[i] += bias(atoms.types[i]);
  }

 private:
  double bias(int32_t type) const { return type < 0 ? 0.0 : bias_[type]; }

  std::unique_ptr<bool[]> mask_;
  const std::vector<double> coefficients_, bias_;
  const int ntypes_;
  TableArgs table_{};
  std::vector<double> other_;
};

template <class T>
class ComposedModel : public CpuBase {
 public:
  ComposedModel(const File& file, const Json& about, const Request& request) : CpuBase(about, request) {
    cutoff_ = positive(about, "cutoff");
    shortest_ = about.at("grids").at(request.precision).at("r_min").as_number();
    closest_ = about.at("closest").as_number();
    bias_ = file.numbers<double>("core.bias", {ntypes()});
    has_energy_ = file.flags("core.has_energy", {ntypes()});
    all_have_energy_ = std::count(has_energy_.begin(), has_energy_.end(), 0) == 0;
    const std::vector<Json>& members = about.at("members").as_list();
    if (members.empty()) damaged("it has no members");
    for (size_t m = 0; m < members.size(); ++m) {
      const std::string prefix = "core." + std::to_string(m) + ".";
      factors_.push_back(members[m].at("factor").as_number());
      if (members[m].at("is_table").as_bool()) {
        parts_.push_back(std::make_unique<TablePart>(file, members[m], prefix, ntypes()));
      } else {
        parts_.push_back(
            std::make_unique<SumsPart<T>>(file, members[m], prefix, request.precision, ntypes()));
      }
    }
    take_parameters();
    if (const Json* const near = about.find("near")) read_near(file, *near);
    set_threads(request.threads);
  }

 protected:
  void evaluate(const Atoms& atoms, mdops_output& output) override {
    begin(atoms, output);
    if (near_)
      blend(atoms, output);
    else
      sum(atoms, output);
    finish(atoms, output);
  }

 private:
  // A blend's weights.
  struct Near {
    std::unique_ptr<bool[]> mask;
    NearArgs args;
  };

  void read_near(const File& file, const Json& about) {
    near_ = std::make_unique<Near>();
    near_->mask = bools(file.flags("core.near_mask", {ntypes(), ntypes()}));
    near_->args = {near_->mask.get(), positive(about, "cutoff"), positive(about, "decay"),
                   about.at("low").as_number(), about.at("high").as_number()};
    if (!(near_->args.low < near_->args.high)) damaged("its blend has no range");
    table_ = parts_.size() == 2 ? dynamic_cast<TablePart*>(parts_[1].get()) : nullptr;
    if (!table_) damaged("its blend is not of a model and a table");
  }

  // Those of its parts, which take the same ones where they take any.
  void take_parameters() {
    const Parameters* found[2] = {parts_[0]->parameters[0], parts_[0]->parameters[1]};
    static const Parameters none;
    for (int k = 0; k < 2; ++k) {
      for (const auto& part : parts_) {
        const Parameters* const own = part->parameters[k];
        if (!own || !own->size()) continue;
        if (found[k] && found[k]->size() && found[k]->size() != own->size())
          damaged("its parts take different parameters");
        if (!found[k] || !found[k]->size() || own->needed()) found[k] = own;
      }
      if (!found[k]) found[k] = &none;
    }
    takes(*found[0], *found[1]);
  }

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
      counted_[i] = atoms.types[i] < 0 ? 0.0 : has_energy_[atoms.types[i]];
  }

  // The atoms' weights; null: 1.
  const double* weights() const { return all_have_energy_ ? nullptr : counted_.data(); }

  void add(double factor, const Answer& answer) {
    for (size_t k = 0; k < forces_.size(); ++k) forces_[k] += factor * answer.forces[k];
    for (size_t k = 0; k < atom_virial_.size(); ++k) atom_virial_[k] += factor * answer.atom_virial[k];
    for (int k = 0; k < 9; ++k) virial_[k] += factor * answer.virial[k];
  }

  void sum(const Atoms& atoms, mdops_output& output) {
    for (size_t m = 0; m < parts_.size(); ++m) {
      parts_[m]->run(atoms, weights(), of_atoms_, answer_);
      for (int64_t i = 0; i < atoms.centers; ++i) energy_[i] += factors_[m] * answer_.energy[i];
      add(factors_[m], answer_);
      judge(atoms, *parts_[m], answer_.within, answer_.nearest, output);
    }
  }

  // The first model far from other atoms, the table near them.
  void blend(const Atoms& atoms, mdops_output& output) {
    const ListArgs list = list_of(atoms, ntypes());
    std::vector<double> near(atoms.centers), far(atoms.centers), table(atoms.centers), closest(atoms.centers);
    std::vector<int32_t> within(atoms.centers * ntypes(), 0);
    const NearReport report{within.data(), closest.data()};
    near_step("compute", list, near_->args, atoms.centers, near.data(), report);
    if (table_->cutoff() != near_->args.cutoff) {  // the table reports of the atoms that it looks at
      NearArgs reach = near_->args;
      reach.cutoff = table_->cutoff();
      std::fill(within.begin(), within.end(), 0);
      near_step("compute", list, reach, atoms.centers, far.data(), report);
    }
    bool any = false;
    for (int64_t i = 0; i < atoms.centers; ++i) {
      any |= near[i] != 0;
      far[i] = (1 - near[i]) * counted_[i], table[i] = near[i] * counted_[i];
    }
    parts_[0]->run(atoms, any || !all_have_energy_ ? far.data() : nullptr, of_atoms_, answer_);
    add(1, answer_);
    judge(atoms, *parts_[0], answer_.within, answer_.nearest, output);
    judge(atoms, *table_, within, closest, output);
    for (int64_t i = 0; i < atoms.centers; ++i) energy_[i] = (1 - near[i]) * answer_.energy[i];
    if (!any) return;
    table_->blend(atoms, table.data(), answer_.energy.data(), &near_->args, of_atoms_, of_table_);
    add(1, of_table_);
    // A table's NaN is of atoms that are too near, and those alone have it.
    for (int64_t i = 0; i < atoms.centers; ++i)
      if (near[i] != 0) energy_[i] += near[i] * of_table_.energy[i];
  }

  // What there is to say of a part's neighbours.
  void judge(const Atoms& atoms, const Part& part, const std::vector<int32_t>& within,
             const std::vector<double>& nearest, mdops_output& output) {
    for (int64_t i = 0; i < atoms.centers; ++i) {
      is_number_ &= nearest[i] == nearest[i];
      if (nearest[i] == 0) refuse_place(i, output);
      nearest_ = std::min(nearest_, nearest[i]);
      if (nearest[i] < closest_) {
        output.atom = i;
        throw Error(MDOPS_NEIGHBORS, "atom " + std::to_string(i) + " has a neighbour at " +
                                         std::to_string(nearest[i]) +
                                         " A, where the model's pair table has no " +
                                         "energies: it begins at " + std::to_string(closest_) + " A");
      }
      const int32_t* const own = within.data() + i * part.counts();
      for (const Limit& limit : part.limits()) {
        int64_t n = 0;
        for (int64_t k = 0; k < limit.count; ++k) n += own[limit.first + k];
        if (!extends_ && n > limit.places) refuse_crowd(i, limit.t, n, limit.places, output);
      }
    }
  }

  void finish(const Atoms& atoms, mdops_output& output) const {
    output.nearest = is_number_ ? nearest_ : std::numeric_limits<double>::quiet_NaN();
    std::copy_n(virial_, 9, output.virial);
    output.energy = 0;
    for (int64_t i = 0; i < atoms.centers; ++i) {
      const int32_t type = atoms.types[i];
      const double energy = type < 0 || !has_energy_[type] ? 0.0 : energy_[i] + bias_[type];
      output.energy += energy;
      if (output.atom_energy) output.atom_energy[i] = energy;
    }
    if (output.forces) std::copy(forces_.begin(), forces_.end(), output.forces);
    if (output.atom_virial) std::copy(atom_virial_.begin(), atom_virial_.end(), output.atom_virial);
  }

  std::vector<std::unique_ptr<Part>> parts_;
  std::vector<double> factors_, bias_;
  std::vector<uint8_t> has_energy_;
  bool all_have_energy_ = true;
  double closest_ = 0;  // A: nearer atoms have no energy
  std::unique_ptr<Near> near_;
  TablePart* table_ = nullptr;  // of a blend

  // Of the last call: memory.
  Answer answer_, of_table_;
  std::vector<double> energy_, forces_, atom_virial_;
  std::vector<double> counted_;  // 1 for atoms of types that have an energy, 0 for the others
  double virial_[9] = {}, nearest_ = 0;
  bool of_atoms_ = false, is_number_ = true;
};

}  // namespace

std::unique_ptr<Model> composed_model(const File& file, const Json& about, const Request& request) {
  if (request.precision == "float64") return std::make_unique<ComposedModel<double>>(file, about, request);
  return std::make_unique<ComposedModel<float>>(file, about, request);
}

}  // namespace mdops::core
