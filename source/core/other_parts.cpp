#include "core/other_parts.h"

#include <algorithm>
#include <limits>

#include "angle_moment/shape.h"
#include "attention_layer/attention_layer.h"
#include "axis_product/axis_product.h"
#include "core/error.h"
#include "displacements/displacements.h"
#include "neighbor_rows/listing.h"

namespace mdops::core {

namespace {

// Memory on whole cache lines that only grows.
template <class T>
class Scratch {
 public:
  T* of(int64_t size) {
    if (static_cast<int64_t>(lines_.size()) < size) lines_.resize(size);
    return lines_.data();
  }

 private:
  Lines<T> lines_;
};

int64_t positive_integer(const Json& about, const char* name) {
  const int64_t value = about.at(name).as_integer();
  if (value < 1 || value > kMostNumbers) damaged(std::string("its `") + name + "` is out of range");
  return value;
}

template <class T>
class Angles : public Other<T> {
 public:
  Angles(const File& file, const Json& about, const std::string& prefix, const std::string& precision,
         int64_t types)
      : Other<T>(file, about, prefix, precision, types) {
    const Json& knots = about.at("grids").at(precision);
    const int64_t exponent = knots.at("exponent").as_integer(), octaves = knots.at("octaves").as_integer();
    const int64_t fineness = knots.at("fineness").as_integer();
    const std::string refusal = angle_grid_refusal(exponent, octaves, fineness);
    if (!refusal.empty()) damaged(refusal);
    if (types > kMostAngleTypes) damaged("its types are too many");
    grid_ = {static_cast<int>(exponent), static_cast<int>(octaves), static_cast<int>(fineness)};
    const int64_t pairs = types * (types + 1) / 2, gated = about.at("gated").as_bool();
    this->channels = positive_integer(about, "width");
    tables_ = file.numbers<T>(prefix + precision + ".tables",
                              {1 + gated, pairs, grid_.pieces(), this->channels, kAngleRow});
    functions_ = {tables_.data(), gated ? tables_.data() + tables_.size() / 2 : nullptr,
                  static_cast<int>(this->channels)};
  }

  std::unique_ptr<typename Other<T>::Worker> worker() const override {
    return std::make_unique<Worker>(*this);
  }

 private:
  AngleArgs<T> args(const Block<T>& block) const {
    return {block.displacements.data(),
            block.counts.data(),
            block.types.data(),
            this->std.data(),
            this->pair_mask.get(),
            this->cutoff,
            grid_,
            block.width,
            this->ntypes,
            false};
  }

  class Worker : public Other<T>::Worker {
   public:
    explicit Worker(const Angles& of) : of_(of) {}

    void form(const Block<T>& block, T* features, int32_t* within, T* nearest) override {
      const AngleArgs<T> args = of_.args(block);
      MDOPS_RUN(angle_features, args, of_.functions_, 0, block.atoms, scratch(args), features, within,
                nearest);
      for (int64_t i = 0; of_.mixed && i < block.atoms; ++i) {
        int32_t* own = within + i * of_.ntypes;
        for (int t = 1; t < of_.ntypes; ++t) own[0] += own[t], own[t] = 0;
      }
    }

    void lead_on(const Block<T>& block, const T* grad, T* pairs) override {
      const AngleArgs<T> args = of_.args(block);
      MDOPS_RUN(angle_features_backward, args, of_.functions_, grad, 0, block.atoms, scratch(args), pairs);
    }

   private:
    T* scratch(const AngleArgs<T>& args) {
      return memory_.of(MDOPS_RUN(angle_scratch_size, args, of_.functions_.channels));
    }

    const Angles& of_;
    Scratch<T> memory_;
  };

  AngleGrid<T> grid_{};
  std::vector<T> tables_;  // (1 or 2, pairs, pieces, channels, kAngleRow)
  AngleTables<T> functions_{};
};

// DPA-1: rows of neighbours by splines, layers of attention, T^T T_<.
template <class T>
class Attention : public Other<T> {
 public:
  Attention(const File& file, const Json& about, const std::string& prefix, const std::string& precision,
            int64_t types)
      : Other<T>(file, about, prefix, precision, types),
        gated_(about.at("gated").as_bool()),
        smooth_(about.at("smooth").as_bool()),
        by_angles_(about.at("by_angles").as_bool()) {
    const Json& knots = about.at("grids").at(precision);
    const double s_max = knots.at("s_max").as_number();
    check_knots("load", s_max);
    rows_ = positive_integer(about, "width"), axis_ = positive_integer(about, "axis");
    const std::string refusal = shape_refusal(rows_, axis_, {1}, 0);
    if (!refusal.empty()) damaged(refusal);
    this->channels = rows_ * axis_;
    const std::string name = prefix + precision + ".tables";
    const std::vector<int64_t>& shape = file.array(name).shape;
    const int64_t basis = shape.size() == 4 ? shape[2] : 0;
    if (types >= kMostRows || !rows_refusal(types + gated_, basis).empty())
      damaged("its splines are none, or too many");
    table_ = file.numbers<T>(name, {types, types + gated_, basis, rows_});
    grid_ = grid_of<T>(basis, s_max);
    mean_.assign(types, T(0));
    zeroed_ = bools(file.flags(prefix + "zeroed", {types, types}));
    const int64_t width = positive_integer(about, "attention");
    const std::vector<Json>& layers = about.at("layers").as_list();
    if (layers.empty() || layers.size() > 1000) damaged("its layers of attention are none, or too many");
    if (!this->mixed || this->sel[0] < 1) damaged("its neighbours have no places of all types");
    shift_ = static_cast<T>(about.at("shift").as_number());
    layers_.resize(layers.size());
    for (size_t l = 0; l < layers.size(); ++l)
      layers_[l].read(file, layers[l], prefix + "layer." + std::to_string(l) + ".", rows_, width);
  }

  std::unique_ptr<typename Other<T>::Worker> worker() const override {
    return std::make_unique<Worker>(*this);
  }

 private:
  struct Layer {
    std::vector<T> project, project_bias, out, out_bias, norm, norm_bias;
    std::vector<T> packed[2];  // for the passes forward and backward
    AttentionLayerArgs<T> args{};

    void read(const File& file, const Json& about, const std::string& prefix, int64_t rows, int64_t width) {
      project = file.numbers<T>(prefix + "project", {rows, 3 * width});
      project_bias = file.numbers<T>(prefix + "project_bias", {3 * width});
      out = file.numbers<T>(prefix + "out", {width, rows});
      out_bias = file.numbers<T>(prefix + "out_bias", {rows});
      norm = file.numbers<T>(prefix + "norm", {rows}),
      norm_bias = file.numbers<T>(prefix + "norm_bias", {rows});
      args.attention.heads = 1;
      args.attention.width = args.attention.value_width = width;
      args.attention.scale = static_cast<T>(about.at("scale").as_number());
      args.features = rows, args.normalize = about.at("normalize").as_bool();
      args.eps = static_cast<T>(about.at("eps").as_number());
      args.project = project.data(), args.project_bias = project_bias.data();
      args.out = out.data(), args.out_bias = out_bias.data();
      args.norm = norm.data(), args.norm_bias = norm_bias.data();
      for (const bool backward : {false, true}) {
        packed[backward].resize(MDOPS_RUN(attention_layer_packed_size, args));
        MDOPS_RUN(attention_layer_pack, args, backward, packed[backward].data());
      }
    }
  };

  class Worker : public Other<T>::Worker {
   public:
    explicit Worker(const Attention& of) : of_(of), g_(of.layers_.size() + 1), saved_(of.layers_.size()) {}

    void form(const Block<T>& block, T* features, int32_t* within, T* nearest) override {
      list(block, within, nearest);
      const int64_t width = of_.rows_, most = rows_ * width;
      environment_.resize(4 * rows_), switches_.resize(rows_), directions_.resize(3 * rows_);
      for (std::vector<T>& g : g_) g.resize(most);
      MDOPS_RUN(spline_rows, splines(block), 0, rows_,
                SplineRows<T>{environment_.data(), switches_.data(), directions_.data(), g_[0].data()});
      for (size_t l = 0; l < saved_.size(); ++l) {
        saved_[l].resize(rows_ * attention_layer_saved(width, of_.layers_[l].args.attention.width));
        each_atom(l, false, [&](const AttentionLayerArgs<T>& args, int64_t atom, void* scratch) {
          MDOPS_RUN(attention_layer_forward, args, atom, g_[l + 1].data(), scratch);
        });
      }
      t_.resize(4 * width * block.atoms);
      MDOPS_RUN(row_moments, moments(), 0, block.atoms, t_.data());
      for (T& t : t_) t *= share();
      const AxisArgs<T> axis = features_of(block, nullptr, features);
      for (int64_t i = 0; i < block.atoms; ++i) axis_features(axis, i);
    }

    void lead_on(const Block<T>& block, const T* grad, T* pairs) override {
      by_t_.resize(t_.size());
      const AxisArgs<T> axis = features_of(block, grad, by_t_.data());
      for (int64_t i = 0; i < block.atoms; ++i) axis_gradients(axis, i);
      for (T& t : by_t_) t *= share();
      by_environment_.resize(4 * rows_), by_g_.resize(rows_ * of_.rows_), below_.resize(by_g_.size());
      MDOPS_RUN(row_moment_gradients, moments(), by_t_.data(), 0, block.atoms, by_environment_.data(),
                by_g_.data());
      by_switches_.assign(rows_, T(0)), by_directions_.assign(3 * rows_, T(0));
      of_layer_.resize(4 * rows_);
      T *const gate = of_.by_angles_ ? of_layer_.data() : nullptr, *const switches =
                                                                       of_.smooth_
                                                                           ? of_layer_.data() + 3 * rows_
                                                                           : nullptr;
      for (size_t l = saved_.size(); l-- > 0;) {
        each_atom(l, true, [&](AttentionLayerArgs<T> args, int64_t atom, void* scratch) {
          args.grad = by_g_.data();
          MDOPS_RUN(attention_layer_backward, args, atom,
                    AttentionLayerResults<T>{below_.data(), gate, switches}, scratch);
        });
        for (int64_t k = 0; gate && k < 3 * rows_; ++k) by_directions_[k] += gate[k];
        for (int64_t k = 0; switches && k < rows_; ++k) by_switches_[k] += switches[k];
        by_g_.swap(below_);
      }
      std::fill_n(pairs, 3 * block.atoms * block.width, T(0));
      MDOPS_RUN(spline_row_gradients, splines(block), 0, rows_,
                SplineRows<T, const T*>{by_environment_.data(), by_switches_.data(), by_directions_.data(),
                                        by_g_.data()},
                pairs);
    }

   private:
    SlotArgs<T> slots(const Block<T>& block) const {
      return {block.displacements.data(),
              block.counts.data(),
              block.types.data(),
              block.atoms,
              block.width,
              of_.ntypes};
    }

    // Which neighbours are rows.
    void list(const Block<T>& block, int32_t* within, T* nearest) {
      offsets_.resize(block.atoms + 1), slots_.resize(block.atoms * block.width);
      taken_.resize(block.atoms), counted_.resize(block.atoms), empty_.resize(block.atoms);
      const T c = of_.cutoff.cutoff;
      const RowListArgs<T> args{slots(block), of_.pair_mask.get(), of_.zeroed_.get(), c * c};
      const RowListResults<T> out{offsets_.data(), slots_.data(), taken_.data(), counted_.data(), nearest};
      count_rows(args, 0, block.atoms, out);
      sum_offsets(block.atoms, out);
      fill_slots(args, 0, block.atoms, out);
      rows_ = offsets_[block.atoms], longest_ = 0;
      for (int64_t i = 0; i < block.atoms; ++i) {
        const int32_t rows = offsets_[i + 1] - offsets_[i];
        longest_ = std::max<int64_t>(longest_, rows);
        empty_[i] = static_cast<T>(std::max(0, of_.sel[0] - rows));
        within[i * of_.ntypes] = counted_[i];
      }
    }

    SplineRowsArgs<T> splines(const Block<T>& block) const {
      return {slots(block),      slots_.data(),
              of_.mean_.data(),  of_.std.data(),
              of_.table_.data(), of_.cutoff,
              of_.grid_,         rows_,
              of_.rows_,         of_.ntypes + of_.gated_,
              of_.gated_};
    }

    RowMomentArgs<T> moments() const {
      return {environment_.data(), g_.back().data(),
              offsets_.data(),     rows_,
              of_.rows_,           static_cast<int64_t>(offsets_.size()) - 1};
    }

    AxisArgs<T> features_of(const Block<T>& block, const T* grad, T* out) const {
      return {block.atoms, 4, static_cast<int>(of_.rows_), static_cast<int>(of_.axis_), t_.data(), grad, out};
    }

    // By which T is the mean over places.
    T share() const { return T(1) / static_cast<T>(of_.sel[0]); }

    // work(args, atom, scratch) for the atoms that have neighbours.
    template <class Work>
    void each_atom(size_t l, bool backward, const Work& work) {
      const Layer& layer = of_.layers_[l];
      AttentionLayerArgs<T> args = layer.args;
      args.attention.rows = rows_, args.attention.sequences = static_cast<int64_t>(offsets_.size()) - 1;
      args.attention.offsets = offsets_.data();
      args.attention.gates = of_.by_angles_ ? 3 : 0;
      args.attention.in.gate = of_.by_angles_ ? directions_.data() : nullptr;
      args.attention.in.switches = of_.smooth_ ? switches_.data() : nullptr;
      args.attention.absent = of_.smooth_ ? empty_.data() : nullptr;
      args.attention.shift = of_.smooth_ ? of_.shift_ : T(0);
      args.g = g_[l].data(), args.saved = saved_[l].data(), args.packed = layer.packed[backward].data();
      char* const scratch = memory_.of(MDOPS_RUN(attention_layer_scratch_size, args, backward, longest_));
      for (int64_t atom = 0; atom < args.attention.sequences; ++atom)
        if (args.attention.length(atom)) work(args, atom, scratch);
    }

    const Attention& of_;
    int64_t rows_ = 0, longest_ = 0;
    std::vector<int32_t> offsets_, slots_, taken_, counted_;
    std::vector<T> empty_, environment_, switches_, directions_, t_;
    std::vector<std::vector<T>> g_, saved_;  // before each layer and after the last; what each keeps
    std::vector<T> by_t_, by_environment_, by_switches_, by_directions_, by_g_, below_, of_layer_;
    Scratch<char> memory_;
  };

  const bool gated_, smooth_, by_angles_;
  int64_t rows_ = 0, axis_ = 0;  // M and M2
  SplineGrid<T> grid_{};
  T shift_ = 0;
  std::vector<T> table_, mean_;
  std::unique_ptr<bool[]> zeroed_;
  std::vector<Layer> layers_;
};

// Adds the forces and virials of pairs to a thread's sums.
template <class T>
void spread(const Block<T>& block, const int32_t* ids, int ntypes, const T* pairs,
            PotentialResults<T>& sums) {
  for (int64_t a = 0; a < block.atoms; ++a) {
    int64_t slot = a * block.width, end = slot;
    for (int t = 0; t < ntypes; ++t) end += block.counts[a * ntypes + t];
    T* const own = sums.forces + 4 * int64_t{ids[a]};
    for (; slot < end; ++slot) {
      const T *g = pairs + 3 * slot, *d = block.displacements.data() + 3 * slot;
      const int64_t j = block.neighbors[slot];
      if (g[0] == 0 && g[1] == 0 && g[2] == 0) continue;  // beyond the cutoff
      for (int b = 0; b < 3; ++b) {
        own[b] += g[b], sums.forces[4 * j + b] -= g[b];
        for (int c = 0; c < 3; ++c) {  // the force's component first
          const double w = pair_virial(g, d, c, b);
          sums.virial[3 * b + c] += w;
          if (sums.atom_virial) sums.atom_virial[9 * j + 3 * b + c] += static_cast<T>(w);
        }
      }
    }
  }
}

}  // namespace

template <class T>
void Block<T>::fill(const Atoms& from, const int32_t* ids, int64_t count, int ntypes) {
  const Rows& rows = *from.rows;
  atoms = count, width = 0;
  counts.resize(count * ntypes), types.resize(count);
  for (int64_t a = 0; a < count; ++a) {
    int64_t own = 0;
    for (int t = 0; t < ntypes; ++t)
      own += counts[a * ntypes + t] = rows.counts[int64_t{ids[a]} * ntypes + t];
    types[a] = from.types[ids[a]], width = std::max(width, own);
  }
  neighbors.resize(count * width), displacements.assign(3 * count * width, T(0));
  for (int64_t a = 0; a < count; ++a) {
    const int64_t i = ids[a];
    const int32_t *to = rows.neighbors.data() + i * rows.width, *images = rows.images.data() + i * rows.width;
    int64_t own = 0;
    for (int t = 0; t < ntypes; ++t) own += counts[a * ntypes + t];
    for (int64_t k = 0; k < own; ++k) {
      double d[3];
      displacement(from.positions + 3 * i, from.positions + 3 * int64_t{to[k]}, from.cell, images[k], d);
      neighbors[a * width + k] = to[k];
      for (int c = 0; c < 3; ++c) displacements[3 * (a * width + k) + c] = static_cast<T>(d[c]);
    }
  }
}

template <class T>
Other<T>::Other(const File& file, const Json& about, const std::string& prefix, const std::string& precision,
                int64_t types)
    : reach(about.at("cutoff").as_number()),
      shortest(about.at("grids").at(precision).at("r_min").as_number()),
      mixed(about.at("mixed").as_bool()),
      ntypes(static_cast<int>(types)) {
  const double smooth = about.at("cutoff_smooth").as_number(),
               protection = about.at("protection").as_number();
  check_cutoff("load", reach, smooth, protection);
  cutoff = {static_cast<T>(reach), static_cast<T>(smooth), static_cast<T>(protection)};
  std = file.numbers<T>(prefix + "std", {types, 2});
  for (const T x : std)
    if (!(x > T(0))) damaged("its standard deviations are not positive");
  pair_mask = bools(file.flags(prefix + "pair_mask", {types, types}));
  sel = file.integers(prefix + "sel", {mixed ? 1 : types});
  for (const int32_t places : sel)
    if (places < 0) damaged("its numbers of places are negative");
  constants = file.numbers<T>(prefix + "constants", {types, -1});
  constant_count = types ? static_cast<int64_t>(constants.size()) / types : 0;
}

template <class T>
std::unique_ptr<Other<T>> other_descriptor(const File& file, const Json& about, const std::string& prefix,
                                           const std::string& precision, int64_t types) {
  if (about.at("is_angles").as_bool())
    return std::make_unique<Angles<T>>(file, about, prefix, precision, types);
  return std::make_unique<Attention<T>>(file, about, prefix, precision, types);
}

template <class T>
int64_t OtherParts<T>::width() const {
  int64_t sum = 0;
  for (const auto& one : descriptors) sum += one->width();
  return sum;
}

template <class T>
int OtherParts<T>::widest() const {
  int found = 0;
  for (size_t k = 1; k < descriptors.size(); ++k)
    if (descriptors[k]->reach > descriptors[found]->reach) found = static_cast<int>(k);
  return found;
}

template <class T>
void OtherParts<T>::at(const Atoms& atoms, int64_t columns, T* extra, const T* grad_extra) {
  atoms_ = &atoms, columns_ = columns, extra_ = extra, grad_extra_ = grad_extra;
  if (empty()) return;
  within.assign(atoms.centers * descriptors.size() * ntypes_, 0);
  nearest.assign(atoms.centers, static_cast<T>(descriptors[widest()]->reach));
}

template <class T>
void OtherParts<T>::begin(int64_t threads) {
  threads_.resize(std::max<size_t>(threads, threads_.size()));
  for (Thread& own : threads_)
    for (size_t k = own.workers.size(); k < descriptors.size(); ++k)
      own.workers.push_back(descriptors[k]->worker());
}

template <class T>
void OtherParts<T>::form(int64_t thread, const int32_t* ids, int64_t count) {
  Thread& own = threads_[thread];
  own.block.fill(*atoms_, ids, count, ntypes_);
  own.nearest.resize(count);
  const int longest = widest();
  int64_t first = 0;
  for (size_t k = 0; k < descriptors.size(); ++k) {
    const Other<T>& one = *descriptors[k];
    own.features.resize(count * one.channels);
    own.within.assign(count * ntypes_, 0);
    own.workers[k]->form(own.block, own.features.data(), own.within.data(), own.nearest.data());
    for (int64_t a = 0; a < count; ++a) {
      const int64_t i = ids[a], type = own.block.types[a];
      T* to = extra_ + i * columns_ + first;
      to = std::copy_n(own.features.data() + a * one.channels, one.channels, to);
      std::copy_n(one.constants.data() + type * one.constant_count, one.constant_count, to);
      std::copy_n(own.within.data() + a * ntypes_, ntypes_,
                  within.data() + (i * descriptors.size() + k) * ntypes_);
      if (static_cast<int>(k) == longest) nearest[i] = own.nearest[a];
    }
    first += one.width();
  }
}

template <class T>
void OtherParts<T>::lead_on(int64_t thread, const int32_t* ids, int64_t count, PotentialResults<T>& sums) {
  Thread& own = threads_[thread];
  own.pairs.resize(3 * count * own.block.width);
  int64_t first = 0;
  for (size_t k = 0; k < descriptors.size(); ++k) {
    const Other<T>& one = *descriptors[k];
    own.features.resize(count * one.channels);
    for (int64_t a = 0; a < count; ++a)
      std::copy_n(grad_extra_ + ids[a] * columns_ + first, one.channels,
                  own.features.data() + a * one.channels);
    own.workers[k]->lead_on(own.block, own.features.data(), own.pairs.data());
    spread(own.block, ids, ntypes_, own.pairs.data(), sums);
    first += one.width();
  }
}

#define MDOPS_INSTANTIATE(T)                                                                           \
  template struct Block<T>;                                                                            \
  template class Other<T>;                                                                             \
  template class OtherParts<T>;                                                                        \
  template std::unique_ptr<Other<T>> other_descriptor<T>(const File&, const Json&, const std::string&, \
                                                         const std::string&, int64_t);
MDOPS_INSTANTIATE(float)
MDOPS_INSTANTIATE(double)
#undef MDOPS_INSTANTIATE

}  // namespace mdops::core
