#include "core/extra_descriptors.h"

#include <algorithm>

#include "angle_moment/shape.h"
#include "attention_layer/attention_layer.h"
#include "axis_product/axis_product.h"
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

template <class T>
class Angles : public ExtraDescriptor<T> {
 public:
  explicit Angles(const auto&... from) : own_(from...), functions_(own_.functions(own_.tables.data())) {}

  const ExtraDescriptorWeights<T>& data() const override { return own_; }
  std::unique_ptr<typename ExtraDescriptor<T>::Worker> worker() const override {
    return std::make_unique<Worker>(*this);
  }

 private:
  AngleArgs<T> args(const Block<T>& block) const {
    AngleArgs<T> a{};
    a.displacements = block.displacements.data(), a.counts = block.counts.data();
    a.types = block.types.data(), a.std = own_.std.data(), a.pair_mask = own_.pair_mask.get();
    a.cutoff = own_.cutoff, a.grid = own_.grid, a.width = block.width, a.ntypes = own_.ntypes;
    return a;
  }

  class Worker : public ExtraDescriptor<T>::Worker {
   public:
    explicit Worker(const Angles& of) : of_(of) {}

    void forward(const Block<T>& block, T* features, int32_t* within, T* nearest) override {
      const AngleArgs<T> args = of_.args(block);
      MDOPS_RUN(angle_features, args, of_.functions_, 0, block.atoms, scratch(args), features, within,
                nearest);
      const ExtraDescriptorWeights<T>& about = of_.own_;
      for (int64_t i = 0; about.mixed && i < block.atoms; ++i) {
        int32_t* own = within + i * about.ntypes;
        for (int t = 1; t < about.ntypes; ++t) own[0] += own[t], own[t] = 0;
      }
    }

    void backward(const Block<T>& block, const T* grad, T* pairs) override {
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

  const AngleData<T> own_;
  const AngleTables<T> functions_;
};

template <class T>
class Attention : public ExtraDescriptor<T> {
 public:
  explicit Attention(const auto&... from) : own_(from...), layers_(own_.layers.size()) {
    for (size_t l = 0; l < layers_.size(); ++l) layers_[l].set(own_, own_.layers[l]);
  }

  const ExtraDescriptorWeights<T>& data() const override { return own_; }
  std::unique_ptr<typename ExtraDescriptor<T>::Worker> worker() const override {
    return std::make_unique<Worker>(*this);
  }

 private:
  struct Layer {
    std::vector<T> packed[2];  // for the forward and backward passes
    AttentionLayerArgs<T> args{};

    void set(const AttentionData<T>& of, const typename AttentionData<T>::Layer& layer) {
      args.attention.heads = 1;
      args.attention.width = args.attention.value_width = layer.width;
      args.attention.scale = layer.scale;
      args.features = args.columns = of.features, args.normalize = layer.normalize, args.eps = layer.eps;
      if (layer.project.empty())
        args.columns = of.columns;
      else
        args.project = layer.project.data(), args.project_bias = layer.project_bias.data();
      if (!layer.factors.empty()) args.factors = layer.factors.data();
      args.out = layer.out.data(), args.out_bias = layer.out_bias.data();
      args.norm = layer.norm.data(), args.norm_bias = layer.norm_bias.data();
      for (const bool backward : {false, true}) {
        packed[backward].resize(MDOPS_RUN(attention_layer_packed_size, args));
        MDOPS_RUN(attention_layer_pack, args, backward, packed[backward].data());
      }
    }
  };

  class Worker : public ExtraDescriptor<T>::Worker {
   public:
    explicit Worker(const Attention& of)
        : of_(of.own_), layers_(of.layers_), g_(layers_.size() + 1), saved_(layers_.size()) {}

    void forward(const Block<T>& block, T* features, int32_t* within, T* nearest) override {
      list(block, within, nearest);
      const int64_t width = of_.features;
      environment_.resize(4 * rows_), switches_.resize(rows_), directions_.resize(3 * rows_);
      for (std::vector<T>& g : g_) g.resize(rows_ * width);
      g_[0].resize(rows_ * of_.columns);
      MDOPS_RUN(spline_rows, splines(block), 0, rows_,
                SplineRows<T>{environment_.data(), switches_.data(), directions_.data(), g_[0].data()});
      for (size_t l = 0; l < saved_.size(); ++l) {
        saved_[l].resize(rows_ * layers_[l].args.kept());
        each_atom(l, false, [&](const AttentionLayerArgs<T>& args, int64_t atom, void* scratch) {
          MDOPS_RUN(attention_layer_forward, args, atom, g_[l + 1].data(), scratch);
        });
      }
      t_.resize(4 * width * block.atoms);
      MDOPS_RUN(row_moments, moments(), 0, block.atoms, t_.data());
      for (T& t : t_) t *= share();
      const AxisArgs<T> axis = features_of(block, nullptr, features);
      MDOPS_RUN(axis_features, axis, 0, block.atoms);
    }

    void backward(const Block<T>& block, const T* grad, T* pairs) override {
      by_t_.resize(t_.size());
      const AxisArgs<T> axis = features_of(block, grad, by_t_.data());
      MDOPS_RUN(axis_gradients, axis, 0, block.atoms);
      for (T& t : by_t_) t *= share();
      by_environment_.resize(4 * rows_), by_g_.resize(rows_ * of_.columns), below_.resize(by_g_.size());
      MDOPS_RUN(row_moment_gradients, moments(), by_t_.data(), 0, block.atoms, by_environment_.data(),
                by_g_.data());
      by_switches_.assign(rows_, T(0)), by_directions_.assign(3 * rows_, T(0));
      of_layer_.resize(4 * rows_);
      T *const gate = of_.by_angles ? of_layer_.data() : nullptr, *const switches =
                                                                      of_.smooth
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

    // Finds the neighbours that are rows.
    void list(const Block<T>& block, int32_t* within, T* nearest) {
      offsets_.resize(block.atoms + 1), slots_.resize(block.atoms * block.width);
      taken_.resize(block.atoms), counted_.resize(block.atoms), empty_.resize(block.atoms);
      const T c = of_.cutoff.cutoff;
      const RowListArgs<T> args{slots(block), of_.pair_mask.get(), of_.zeroed.get(), c * c};
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
      return {{slots(block), slots_.data(), of_.mean.data(), of_.std.data(), of_.cutoff, rows_},
              of_.table.data(),
              of_.grid,
              of_.columns,
              of_.ntypes + of_.gated,
              of_.gated};
    }

    RowMomentArgs<T> moments() const {
      return {environment_.data(), g_.back().data(),
              offsets_.data(),     rows_,
              of_.features,        static_cast<int64_t>(offsets_.size()) - 1};
    }

    AxisArgs<T> features_of(const Block<T>& block, const T* grad, T* out) const {
      return {block.atoms, 4,  static_cast<int>(of_.features), static_cast<int>(of_.axis), t_.data(),
              grad,        out};
    }

    // The factor that makes T the mean over places.
    T share() const { return T(1) / static_cast<T>(of_.sel[0]); }

    // work(args, atom, scratch) for the atoms that have neighbours.
    void each_atom(size_t l, bool backward, const auto& work) {
      const Layer& layer = layers_[l];
      AttentionLayerArgs<T> args = layer.args;
      args.attention.rows = rows_, args.attention.sequences = static_cast<int64_t>(offsets_.size()) - 1;
      args.attention.offsets = offsets_.data();
      args.attention.gates = of_.by_angles ? 3 : 0;
      args.attention.in.gate = of_.by_angles ? directions_.data() : nullptr;
      args.attention.in.switches = of_.smooth ? switches_.data() : nullptr;
      args.attention.absent = of_.smooth ? empty_.data() : nullptr;
      args.attention.shift = of_.smooth ? of_.shift : T(0);
      args.g = g_[l].data(), args.saved = saved_[l].data(), args.packed = layer.packed[backward].data();
      char* const scratch = memory_.of(MDOPS_RUN(attention_layer_scratch_size, args, backward, longest_));
      for (int64_t atom = 0; atom < args.attention.sequences; ++atom)
        if (args.attention.length(atom)) work(args, atom, scratch);
    }

    const AttentionData<T>& of_;
    const std::vector<Layer>& layers_;
    int64_t rows_ = 0, longest_ = 0;
    std::vector<int32_t> offsets_, slots_, taken_, counted_;
    std::vector<T> empty_, environment_, switches_, directions_, t_;
    std::vector<std::vector<T>> g_, saved_;  // before each layer and after the last; each one's saved values
    std::vector<T> by_t_, by_environment_, by_switches_, by_directions_, by_g_, below_, of_layer_;
    Scratch<char> memory_;
  };

  const AttentionData<T> own_;
  std::vector<Layer> layers_;
};

// Adds the forces and virials of pairs to a thread's sums.
template <class T>
void spread(const Block<T>& block, const int32_t* ids, int ntypes, const T* pairs,
            PotentialResults<T>& sums) {
  for (int64_t a = 0; a < block.atoms; ++a) {
    int64_t slot = a * block.width, end = slot;
    for (int t = 0; t < ntypes; ++t) end += block.counts[a * ntypes + t];
    T* const own = sums.forces.row(ids[a]);
    double* const virial = sums.virial.row(0);
    for (; slot < end; ++slot) {
      const T *g = pairs + 3 * slot, *d = block.displacements.data() + 3 * slot;
      const int64_t j = block.neighbors[slot];
      if (g[0] == 0 && g[1] == 0 && g[2] == 0) continue;  // beyond the cutoff
      T* const other = sums.forces.row(j);
      T* const of_other = sums.atom_virial ? sums.atom_virial.row(j) : nullptr;
      for (int b = 0; b < 3; ++b) {
        own[b] += g[b], other[b] -= g[b];
        for (int c = 0; c < 3; ++c) {  // the force's component first
          const double w = pair_virial(g, d, c, b);
          virial[3 * b + c] += w;
          if (of_other) of_other[3 * b + c] += static_cast<T>(w);
        }
      }
    }
  }
}

}  // namespace

template <class T>
void Block<T>::fill(const Atoms& from, const int32_t* ids, int64_t count, int ntypes) {
  const Rows& rows = from.rows;
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
std::unique_ptr<ExtraDescriptor<T>> make_extra_descriptor(const File& file, const Json& about,
                                                          const std::string& prefix,
                                                          const std::string& precision, int64_t types) {
  if (about.at("is_angles").as_bool())
    return std::make_unique<Angles<T>>(file, about, prefix, precision, types);
  return std::make_unique<Attention<T>>(file, about, prefix, precision, types);
}

template <class T>
int64_t ExtraDescriptors<T>::width() const {
  int64_t sum = 0;
  for (const auto& one : descriptors) sum += one->data().width();
  return sum;
}

template <class T>
int ExtraDescriptors<T>::widest() const {
  int found = 0;
  for (size_t k = 1; k < descriptors.size(); ++k)
    if (descriptors[k]->data().reach > descriptors[found]->data().reach) found = static_cast<int>(k);
  return found;
}

template <class T>
void ExtraDescriptors<T>::at(const Atoms& atoms, int64_t columns, T* extra, const T* grad_extra) {
  atoms_ = &atoms, columns_ = columns, extra_ = extra, grad_extra_ = grad_extra;
  if (empty()) return;
  within.assign(atoms.centers * descriptors.size() * ntypes_, 0);
  nearest.assign(atoms.centers, static_cast<T>(descriptors[widest()]->data().reach));
}

template <class T>
void ExtraDescriptors<T>::begin(int64_t threads) {
  threads_.resize(std::max<size_t>(threads, threads_.size()));
  for (Thread& own : threads_)
    for (size_t k = own.workers.size(); k < descriptors.size(); ++k)
      own.workers.push_back(descriptors[k]->worker());
}

template <class T>
void ExtraDescriptors<T>::forward(int64_t thread, const int32_t* ids, int64_t count) {
  Thread& own = threads_[thread];
  own.block.fill(*atoms_, ids, count, ntypes_);
  own.nearest.resize(count);
  const int longest = widest();
  int64_t first = 0;
  for (size_t k = 0; k < descriptors.size(); ++k) {
    const ExtraDescriptorWeights<T>& one = descriptors[k]->data();
    own.features.resize(count * one.channels);
    own.within.assign(count * ntypes_, 0);
    own.workers[k]->forward(own.block, own.features.data(), own.within.data(), own.nearest.data());
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
void ExtraDescriptors<T>::backward(int64_t thread, const int32_t* ids, int64_t count,
                                   PotentialResults<T>& sums) {
  Thread& own = threads_[thread];
  own.pairs.resize(3 * count * own.block.width);
  int64_t first = 0;
  for (size_t k = 0; k < descriptors.size(); ++k) {
    const ExtraDescriptorWeights<T>& one = descriptors[k]->data();
    own.features.resize(count * one.channels);
    for (int64_t a = 0; a < count; ++a)
      std::copy_n(grad_extra_ + ids[a] * columns_ + first, one.channels,
                  own.features.data() + a * one.channels);
    own.workers[k]->backward(own.block, own.features.data(), own.pairs.data());
    spread(own.block, ids, ntypes_, own.pairs.data(), sums);
    first += one.width();
  }
}

MDOPS_INSTANTIATE_CLASSES(Block, ExtraDescriptors)
MDOPS_INSTANTIATE(make_extra_descriptor)

}  // namespace mdops::core
