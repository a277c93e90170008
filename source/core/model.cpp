#include "core/model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <new>

#include "core/error.h"
#include "core/list.h"
#include "core/safetensors.h"
#include "core/threads.h"
#include "spline_potential/cpu_loops.h"
#include "spline_potential/cpu_nets.h"
#include "spline_potential/shape.h"

namespace mdops::core {

namespace {

constexpr int kMostThreads = 1024;

// Memory on whole cache lines.
template <class T>
class Lines {
 public:
  void resize(size_t size) {
    data_.reset(
        static_cast<T*>(std::aligned_alloc(64, std::max<size_t>(64, (size * sizeof(T) + 63) / 64 * 64))));
    if (!data_) throw std::bad_alloc();
    std::fill_n(data_.get(), size, T(0));
  }
  T* data() { return data_.get(); }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T[], Free> data_;
};

std::unique_ptr<bool[]> bools(const std::vector<uint8_t>& flags) {
  std::unique_ptr<bool[]> result(new bool[flags.size()]);
  std::copy(flags.begin(), flags.end(), result.get());
  return result;
}

// Frame or atomic parameters, (p - average) * inverse.
struct Parameters {
  std::vector<double> average, inverse, own;  // own: of the model, where none are given

  void read(const File& file, const std::string& name, int64_t size) {
    average = file.numbers<double>("core." + name + ".average", {size});
    inverse = file.numbers<double>("core." + name + ".inverse", {size});
    if (file.has("core." + name + ".default"))
      own = file.numbers<double>("core." + name + ".default", {size});
  }
  size_t size() const { return average.size(); }
};

template <class T>
class ModelOf : public Model {
 public:
  ModelOf(const File& file, const Json& about, const mdops_options& options, const std::string& precision)
      : extends_(options.overflow == MDOPS_EXTEND) {
    read_elements(about);
    read_descriptor(file, about, precision);
    read_nets(file, about);
    set_threads(options.threads);
  }

  void set_threads(int threads) override {
    const std::lock_guard<std::mutex> lock(guard_);
    const int wanted = threads > 0 ? std::min(threads, kMostThreads) : default_threads();
    if (!pool_ || pool_->size() != wanted || pool_->is_forked()) pool_ = std::make_unique<Pool>(wanted);
  }

  mdops_info info() const override {
    const std::lock_guard<std::mutex> lock(guard_);
    return {cutoff_,
            shortest_,
            static_cast<int32_t>(names_.size()),
            static_cast<int32_t>(fparam_.size()),
            static_cast<int32_t>(aparam_.size()),
            fparam_.size() && fparam_.own.empty(),
            sizeof(T) == sizeof(float) ? MDOPS_FLOAT32 : MDOPS_FLOAT64,
            pool_->size(),
            pointers_.data()};
  }

  void compute(const mdops_input& input, mdops_output& output) override {
    const std::lock_guard<std::mutex> lock(guard_);
    const UsePool threads(*pool_);
    output.atom = -1;
    check(input);
    const mdops_list* const list = input.list;
    const int64_t centers = input.atoms, all = input.atoms + input.ghosts;
    systems_.assign(all, 0);
    double cell[9] = {};
    if (!list) search(input, cell);
    const Rows& rows = list ? list->rows : rows_;
    const std::vector<double> places = four_columns(input.positions, all);
    fill_extra(input, list ? list->types.data() : input.types);

    PotentialArgs<T> args = args_;
    args.positions = places.data();
    args.cell = cell;
    args.batch = systems_.data();
    args.types = list ? list->types.data() : input.types;
    args.neighbors = rows.neighbors.data();
    args.images = rows.images.data();
    args.counts = rows.counts.data();
    args.places.padding = mixed_ ? systems_.data() : nullptr;  // of type 0, as mean is zero
    args.extra = extra_.data();
    args.atoms = all;
    args.systems = 1;
    args.list_width = rows.width;

    energy_.assign(centers, 0.0);
    within_.assign(centers * args.ntypes, 0);
    nearest_.assign(centers, args.cutoff.cutoff);
    if (!output.forces) forces_.resize(3 * all);
    std::fill_n(output.virial, 9, 0.0);
    const StepResults<T> results{centers,
                                 energy_.data(),
                                 within_.data(),
                                 nearest_.data(),
                                 output.forces ? output.forces : forces_.data(),
                                 output.virial,
                                 output.atom_virial};
    potential_step("compute", prebuilt_kernels<T>(), args, nets_.data(), net_size_, 0, results);
    judge(args, output);
    output.energy = 0;
    for (int64_t i = 0; i < centers; ++i) output.energy += energy_[i];
    if (output.atom_energy) std::copy(energy_.begin(), energy_.end(), output.atom_energy);
  }

 private:
  void read_elements(const Json& about) {
    for (const Json& name : about.at("elements").as_list()) names_.push_back(name.as_text());
    for (const std::string& name : names_) pointers_.push_back(name.c_str());
  }

  void read_descriptor(const File& file, const Json& about, const std::string& precision) {
    const int64_t ntypes = static_cast<int64_t>(names_.size()), width = about.at("width").as_integer();
    const bool gated = about.at("gated").as_bool();
    const Json& grid = about.at("grids").at(precision);
    const double smooth = about.at("cutoff_smooth").as_number(), s_max = grid.at("s_max").as_number();
    const double protection = about.at("protection").as_number();
    cutoff_ = about.at("cutoff").as_number();
    shortest_ = grid.at("r_min").as_number();
    mixed_ = about.at("mixed").as_bool();
    check_cutoff("load", cutoff_, smooth, protection);
    check_knots("load", s_max);
    const std::string tables = "core." + precision + ".tables";
    const std::vector<int64_t>& shape = file.array(tables).shape;
    const int64_t basis = shape.size() == 4 ? shape[2] : 0, rows = (ntypes + gated) * basis;
    const std::string refusal =
        ntypes < kMostRows ? rows_refusal(ntypes + gated, basis) : "its types are too many";
    if (!refusal.empty()) damaged(refusal);
    const std::vector<T> values = file.numbers<T>(tables, {ntypes, ntypes + gated, basis, width});
    const int64_t padded = table_width(width);
    tables_.resize(ntypes * rows * padded);
    for (int64_t row = 0; row < ntypes * rows; ++row)
      std::copy_n(values.data() + row * width, width, tables_.data() + row * padded);
    mean_ = file.numbers<T>("core.mean", {ntypes});
    std_ = file.numbers<T>("core.std", {ntypes, 2});
    for (const T x : std_)
      if (!(x > T(0))) damaged("its standard deviations are not positive");
    for (const T x : mean_)
      if (mixed_ && x != T(0)) damaged("its types share places, and its mean is not zero");
    pair_mask_ = bools(file.flags("core.pair_mask", {ntypes, ntypes}));
    zeroed_ = bools(file.flags("core.zeroed", {ntypes, ntypes}));
    sel_ = file.integers("core.sel", {mixed_ ? 1 : ntypes});
    for (const int32_t places : sel_)
      if (places < 0) damaged("its numbers of places are negative");
    args_.mean = mean_.data();
    args_.std = std_.data();
    args_.places = {pair_mask_.get(), zeroed_.get(), sel_.data(), nullptr, static_cast<int>(ntypes)};
    args_.tables = tables_.data();
    args_.table_width = padded;
    args_.ntypes = static_cast<int>(ntypes);
    args_.gated = gated;
    args_.cutoff = {static_cast<T>(cutoff_), static_cast<T>(smooth), static_cast<T>(protection)};
    args_.grid = grid_of<T>(basis, s_max);
  }

  void read_nets(const File& file, const Json& about) {
    const int64_t ntypes = args_.ntypes, width = about.at("width").as_integer(),
                  axis = about.at("axis").as_integer();
    fparam_.read(file, "fparam", -1);
    aparam_.read(file, "aparam", -1);
    case_ = file.numbers<T>("core.case", {-1});
    marks_ = about.at("marks").as_bool() ? ntypes : 0;
    if (fparam_.inverse.size() != fparam_.size() || aparam_.inverse.size() != aparam_.size() ||
        (!fparam_.own.empty() && fparam_.own.size() != fparam_.size()))
      damaged("its parameters do not fit together");
    const int64_t extra = marks_ + static_cast<int64_t>(fparam_.size() + aparam_.size() + case_.size());
    const int64_t nets = about.at("nets").as_integer(), layers = about.at("layers").as_integer();
    if (nets != 1 && nets != ntypes) damaged("its nets are not one a type, or one for all");
    if (layers < 2 || layers > kMaxLayers) damaged("its nets have too few layers, or too many");
    const std::string problem = shape_refusal(width, axis, {1}, extra);
    if (!problem.empty()) damaged(problem);

    std::vector<int64_t> neurons, residual;
    for (const Json& adds : about.at("residual").as_list()) residual.push_back(adds.as_bool());
    for (int64_t n = 0; n + 1 < layers; ++n) {
      const std::vector<int64_t>& shape = file.array(part(0, n, "weight")).shape;
      neurons.push_back(shape.size() == 2 ? shape[1] : 0);
    }
    args_.net = fitting_shape("load", width, axis, neurons, extra);
    set_layers("load", residual, about.at("activation").as_integer(), about.at("threshold").as_number(),
               args_.net);
    args_.nets = static_cast<int>(nets);
    net_size_ = PackedNet(args_.net, 0).size;
    nets_.resize(nets * net_size_);
    for (int64_t k = 0; k < nets; ++k) {
      std::vector<std::vector<T>> kept;
      for (int64_t n = 0, inputs = args_.net.features + extra; n < layers; ++n) {
        const int64_t outputs = n + 1 < layers ? neurons[n] : 1;
        kept.push_back(file.numbers<T>(part(k, n, "weight"), {inputs, outputs}));
        kept.push_back(file.numbers<T>(part(k, n, "bias"), {outputs}));
        kept.push_back(file.numbers<T>(part(k, n, "timestep"), {outputs}));
        inputs = outputs;
      }
      std::vector<DenseLayer<T>> dense;
      for (size_t n = 0; n < kept.size(); n += 3)
        dense.push_back({kept[n].data(), kept[n + 1].data(), kept[n + 2].data()});
      pack(args_.net, 0, dense, nets_.data() + k * net_size_);
    }
    scale_ = file.numbers<double>("core.scale", {nets});
    shift_ = file.numbers<double>("core.shift", {ntypes});
    args_.scale = scale_.data();
    args_.shift = shift_.data();
  }

  static std::string part(int64_t net, int64_t layer, const char* name) {
    return "core.net." + std::to_string(net) + "." + std::to_string(layer) + "." + name;
  }

  void check(const mdops_input& input) const {
    const auto refuse = [](const std::string& why) { throw Error(MDOPS_INVALID, "input: " + why); };
    constexpr int64_t most = std::numeric_limits<int32_t>::max();
    if (input.atoms < 0 || input.ghosts < 0 || input.atoms > most || input.ghosts > most - input.atoms)
      refuse("atoms and ghosts are " + std::to_string(input.atoms) + " and " + std::to_string(input.ghosts));
    if (input.atoms + input.ghosts > 0 && !input.positions) refuse("positions is null");
    if (input.list) {
      if (input.list->ntypes != args_.ntypes)
        refuse("the list was filled for " + std::to_string(input.list->ntypes) +
               " types, and the model has " + std::to_string(args_.ntypes));
      if (input.list->atoms != input.atoms || input.list->ghosts != input.ghosts)
        refuse("the list was filled for " + std::to_string(input.list->atoms) + " atoms and " +
               std::to_string(input.list->ghosts) + " ghosts, and there are " + std::to_string(input.atoms) +
               " and " + std::to_string(input.ghosts));
    } else {
      if (input.ghosts) refuse("there are ghosts, and no list");
      if (input.atoms > 0 && !input.types) refuse("types is null, and there is no list");
    }
    if (!fparam_.size() != !input.fparam && !(!input.fparam && !fparam_.own.empty()))
      refuse(fparam_.size() ? "fparam is null, and the model takes " + std::to_string(fparam_.size())
                            : "fparam is given, and the model takes none");
    if (input.atoms > 0 && !aparam_.size() != !input.aparam)
      refuse(aparam_.size() ? "aparam is null, and the model takes " + std::to_string(aparam_.size())
                            : "aparam is given, and the model takes none");
  }

  // Fills rows_, and `cell` (3, 3).
  void search(const mdops_input& input, double* cell) {
    bool periodic[3] = {false, false, false};
    for (int a = 0; a < 3; ++a) periodic[a] = input.cell && (!input.periodic || input.periodic[a]);
    if (input.cell) std::copy_n(input.cell, 9, cell);
    rows_.search(input, cell, periodic, systems_.data(), cutoff_, args_.ntypes);
  }

  // What the nets see of each atom besides its features.
  void fill_extra(const mdops_input& input, const int32_t* types) {
    const int64_t width = args_.net.extra;
    extra_.assign(input.atoms * width, T(0));
    if (!width) return;
    const double* const frame = input.fparam ? input.fparam : fparam_.own.data();
    const auto normalised = [](const Parameters& of, const double* values, T* to) {
      for (size_t k = 0; k < of.size(); ++k)
        to[k] = (static_cast<T>(values[k]) - static_cast<T>(of.average[k])) * static_cast<T>(of.inverse[k]);
      return to + of.size();
    };
    for (int64_t i = 0; i < input.atoms; ++i) {
      T* to = extra_.data() + i * width;
      if (marks_ && types[i] >= 0) to[types[i]] = T(1);
      to = normalised(fparam_, frame, to + marks_);
      to = normalised(aparam_, input.aparam + i * static_cast<int64_t>(aparam_.size()), to);
      std::copy(case_.begin(), case_.end(), to);
    }
  }

  // Sets `nearest`; refuses atoms at one place and, unless told otherwise, more neighbours than places.
  void judge(const PotentialArgs<T>& args, mdops_output& output) const {
    double nearest = cutoff_;
    bool is_number = true;
    for (int64_t i = 0; i < static_cast<int64_t>(nearest_.size()); ++i) {
      const double own = static_cast<double>(nearest_[i]);
      is_number &= own == own;
      nearest = std::min(nearest, own);
      if (own == 0) {
        output.atom = i;
        throw Error(MDOPS_NEIGHBORS, "another atom is at the same place as atom " + std::to_string(i));
      }
      if (!extends_) check_places(args, i, output);
    }
    output.nearest = is_number ? nearest : std::numeric_limits<double>::quiet_NaN();
  }

  void check_places(const PotentialArgs<T>& args, int64_t i, mdops_output& output) const {
    int64_t all = 0;
    for (int t = 0; t < args.ntypes; ++t) {
      const int64_t n = within_[i * args.ntypes + t];
      all += n;
      if (mixed_ ? all <= sel_[0] || t + 1 < args.ntypes : n <= sel_[t]) continue;
      output.atom = i;
      throw Error(MDOPS_NEIGHBORS,
                  "atom " + std::to_string(i) + " has " + std::to_string(mixed_ ? all : n) + " neighbours" +
                      (mixed_ ? "" : " of type " + names_[t]) +
                      " within the cutoff, and the model's sel is " + std::to_string(sel_[mixed_ ? 0 : t]) +
                      ". DeePMD-kit would drop the farthest; overflow MDOPS_EXTEND keeps all");
    }
  }

  mutable std::mutex guard_;
  std::unique_ptr<Pool> pool_;
  const bool extends_;

  std::vector<std::string> names_;
  std::vector<const char*> pointers_;  // to their texts
  double cutoff_ = 0, shortest_ = 0;
  bool mixed_ = false;  // whether places are of all types together
  int64_t marks_ = 0, net_size_ = 0;
  std::vector<T> mean_, std_, case_;
  std::unique_ptr<bool[]> pair_mask_, zeroed_;
  std::vector<int32_t> sel_;
  Lines<T> tables_, nets_;
  std::vector<double> scale_, shift_;
  Parameters fparam_, aparam_;
  PotentialArgs<T> args_{};  // what of them is the model's

  // Of the last call: memory.
  Rows rows_;
  std::vector<int32_t> systems_, within_;
  std::vector<T> extra_, nearest_;
  std::vector<double> energy_, forces_;
};

}  // namespace

std::unique_ptr<Model> Model::load(const std::string& path, const mdops_options& options) {
  const bool is_double = options.precision == MDOPS_FLOAT64;
  const std::string precision = is_double ? "float64" : "float32";
  try {
    const File file(path);
    if (!file.has("core.description"))
      damaged("it has no part for this library: `mdops convert IN OUT.safetensors --core` writes one");
    const Array& text = file.array("core.description");
    const Json about = Json::parse({reinterpret_cast<const char*>(text.data), text.bytes});
    if (about.at("version").as_integer() != 1)
      throw Error(MDOPS_UNSUPPORTED, "its part for this library is of another version than 1");
    if (!about.at("grids").find(precision))
      throw Error(MDOPS_UNSUPPORTED,
                  "it was made for the other precision: `mdops convert IN OUT.safetensors --core " +
                      precision + "` makes it for this one");
    if (is_double) return std::make_unique<ModelOf<double>>(file, about, options, precision);
    return std::make_unique<ModelOf<float>>(file, about, options, precision);
  } catch (const Error& error) {
    throw Error(error.status, path + ": " + error.what());
  } catch (const std::system_error&) {
    throw;
  } catch (const std::runtime_error& error) {  // of the checks that the ops have, too
    throw Error(MDOPS_FILE, path + ": " + error.what());
  }
}

}  // namespace mdops::core
