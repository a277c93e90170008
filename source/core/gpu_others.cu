#include "core/gpu_others.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "angle_moment/gpu_loops.h"
#include "attention_layer/gpu_loops.h"
#include "axis_product/gpu_loops.h"
#include "core/error.h"
#include "core/gpu_sums.h"
#include "displacements/gpu_loops.h"
#include "moment_product/gpu_loops.h"
#include "neighbor_rows/gpu_loops.h"
#include "spline_moment/gpu_loops.h"

namespace mdops::core {

namespace {

// 3 x 3 matrices.
__global__ void add_transposed_kernel(const double* from, int64_t count, double* to) {
  const int64_t k = thread_number(), i = k / 9;
  const int row = static_cast<int>(k % 9) / 3, column = static_cast<int>(k % 3);
  if (k < count) to[k] += from[9 * i + 3 * column + row];
}

// Of each atom's type; `row_atom` null: the atoms themselves.
template <class T>
__global__ void constants_kernel(const int32_t* types, const int32_t* row_atom, const T* constants,
                                 int64_t numbers, int count, int64_t columns, T* to) {
  const int64_t k = thread_number(), row = k / count;
  if (k >= numbers) return;
  const int64_t i = row_atom ? row_atom[row] : row;
  const int type = i < 0 ? -1 : types[i], c = static_cast<int>(k % count);
  to[row * columns + c] = type < 0 ? T(0) : constants[int64_t{type} * count + c];
}

template <class T>
class GpuAngles : public GpuOther<T> {
 public:
  GpuAngles(const AngleData<T>& data, cudaStream_t stream) : GpuOther<T>(data, stream) {
    const int64_t pairs = int64_t{data.ntypes} * data.ntypes;
    args_.std = std_.copy(data.std.data(), data.std.size(), stream);
    args_.pair_mask = pair_mask_.copy(data.pair_mask.get(), pairs, stream);
    args_.cutoff = data.cutoff, args_.grid = data.grid, args_.ntypes = data.ntypes;
    functions_ = data.functions(tables_.copy(data.tables.data(), data.tables.size(), stream));
    this->counts = data.ntypes;
    add_limits(data.mixed, data.sel, 0, data.ntypes, this->limits);
    check_cuda(cudaStreamSynchronize(stream));  // `data` may go
  }

  void form(const Gpu& gpu, const GpuBlock<T>& block, T* features, int32_t* within, T* nearest) override {
    const AngleArgs<T> args = args_of(block);
    void* const memory = memory_.resize(angle_features_bytes(gpu, args, functions_, block.atoms));
    run_angle_features(gpu, args, functions_, block.atoms, memory, features, within, nearest);
  }

  void lead_on(const Gpu& gpu, const GpuBlock<T>& block, const T* grad, T* pairs) override {
    const AngleArgs<T> args = args_of(block);
    void* const memory = memory_.resize(angle_gradients_bytes(gpu, args, functions_, block.atoms));
    run_angle_gradients(gpu, args, functions_, block.atoms, grad, memory, pairs);
  }

 private:
  AngleArgs<T> args_of(const GpuBlock<T>& block) const {
    AngleArgs<T> args = args_;
    args.displacements = block.displacements, args.counts = block.counts, args.types = block.types;
    args.width = block.width;
    return args;
  }

  AngleArgs<T> args_{};
  AngleTables<T> functions_{};
  GpuArray<T> std_, tables_;
  GpuArray<bool> pair_mask_;
  GpuArray<char> memory_;
};

__global__ void scale_kernel(float* numbers, float factor, int64_t count) {
  const int64_t k = thread_number();
  if (k < count) numbers[k] *= factor;
}

// Places that no neighbour has.
__global__ void empty_kernel(const int32_t* offsets, int32_t places, int64_t atoms, float* empty) {
  const int64_t i = thread_number();
  if (i < atoms) empty[i] = static_cast<float>(max(0, places - (offsets[i + 1] - offsets[i])));
}

// DPA-1: rows of neighbours by splines, layers of attention, T^T T_<.
class GpuAttention : public GpuOther<float> {
 public:
  GpuAttention(const AttentionData<float>& data, cudaStream_t stream)
      : GpuOther<float>(data, stream),
        ntypes_(data.ntypes),
        places_(data.sel[0]),
        functions_(data.ntypes + data.gated),
        features_(data.features),
        axis_(data.axis),
        attention_(data.attention),
        gated_(data.gated),
        smooth_(data.smooth),
        by_angles_(data.by_angles),
        shift_(data.shift),
        cutoff_(data.cutoff),
        grid_(data.grid),
        layers_(data.layers.size()),
        g_(layers_.size() + 1) {
    const std::string refusal = attention_layer_refusal(features_, attention_);
    if (!refusal.empty())
      throw Error(MDOPS_UNSUPPORTED,
                  "on GPUs this library has rows of neighbours and attention up to 128 wide: "
                  "load it for the CPU");
    const auto copy = [&](const auto& from, auto& to) { to.copy(from.data(), from.size(), stream); };
    const int64_t pairs = int64_t{ntypes_} * ntypes_;
    copy(data.mean, mean_), copy(data.std, std_), copy(data.table, table_);
    pair_mask_.copy(data.pair_mask.get(), pairs, stream), zeroed_.copy(data.zeroed.get(), pairs, stream);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const AttentionData<float>::Layer& from = data.layers[l];
      Layer& to = layers_[l];
      copy(from.project, to.project), copy(from.project_bias, to.project_bias), copy(from.out, to.out);
      copy(from.out_bias, to.out_bias), copy(from.norm, to.norm), copy(from.norm_bias, to.norm_bias);
      to.scale = from.scale, to.eps = from.eps, to.normalize = from.normalize;
    }
    check_cuda(cudaStreamSynchronize(stream));  // `data` may go
    counts = 1;
    limits.push_back({0, 1, places_, -1});
  }

  int64_t most_atoms(int64_t width) const override {
    constexpr int64_t most = 1 << 27;  // numbers of the largest array
    return std::max<int64_t>(1, most / (width * std::max(3 * attention_, features_)));
  }

  void form(const Gpu& gpu, const GpuBlock<float>& block, float* features, int32_t* within,
            float* nearest) override {
    list(gpu, block, within, nearest);
    environment_.resize(4 * rows_), switches_.resize(rows_), directions_.resize(3 * rows_);
    for (GpuArray<float>& g : g_) g.resize(rows_ * features_);
    run_spline_rows(gpu, splines(block),
                    {environment_.data(), switches_.data(), directions_.data(), g_[0].data()});
    for (size_t l = 0; l < layers_.size(); ++l) {
      layers_[l].saved.resize(rows_ * attention_layer_saved(features_, attention_));
      const AttentionLayerArgs<float> args = args_of(l);
      run_attention_layer(gpu, args, plan(), memory_.resize(attention_layer_bytes(args, false)),
                          g_[l + 1].data());
    }
    const int64_t numbers = 4 * features_ * atoms_;
    run_row_moments(gpu, moments(), t_.resize(numbers));
    launch_numbers(gpu, scale_kernel, numbers, t_.data(), 1.0f / places_, numbers);
    run_axis_features(gpu, axis(nullptr, features));
  }

  void lead_on(const Gpu& gpu, const GpuBlock<float>& block, const float* grad, float* pairs) override {
    const int64_t numbers = 4 * features_ * atoms_;
    run_axis_gradients(gpu, axis(grad, by_t_.resize(numbers)));
    launch_numbers(gpu, scale_kernel, numbers, by_t_.data(), 1.0f / places_, numbers);
    float *by_g = by_g_.resize(rows_ * features_), *below = below_.resize(rows_ * features_);
    run_row_moment_gradients(gpu, moments(), by_t_.data(), by_environment_.resize(4 * rows_), by_g);
    gpu.clear(by_switches_.resize(rows_), 4 * rows_);
    gpu.clear(by_directions_.resize(3 * rows_), 12 * rows_);
    float* const gate = by_angles_ ? of_directions_.resize(3 * rows_) : nullptr;
    float* const switches = smooth_ ? of_switches_.resize(rows_) : nullptr;
    for (size_t l = layers_.size(); l-- > 0;) {
      AttentionLayerArgs<float> args = args_of(l);
      args.grad = by_g;
      run_attention_layer_gradients(gpu, args, plan(), memory_.resize(attention_layer_bytes(args, true)),
                                    {below, gate, switches});
      if (gate)
        launch_numbers(gpu, add_kernel<float>, 3 * rows_, gate, 1.0f, 3 * rows_, by_directions_.data());
      if (switches) launch_numbers(gpu, add_kernel<float>, rows_, switches, 1.0f, rows_, by_switches_.data());
      std::swap(by_g, below);
    }
    run_spline_row_gradients(gpu, splines(block),
                             {by_environment_.data(), by_switches_.data(), by_directions_.data(), by_g},
                             pairs);
  }

 private:
  struct Layer {
    GpuArray<float> project, project_bias, out, out_bias, norm, norm_bias;
    float scale, eps;
    bool normalize;
    GpuArray<float> saved;  // of the last call
  };

  SlotArgs<float> slots(const GpuBlock<float>& block) const {
    return {block.displacements, block.counts, block.types, block.atoms, block.width, ntypes_};
  }

  // Which neighbours are rows, and how many there are, for which this waits.
  void list(const Gpu& gpu, const GpuBlock<float>& block, int32_t* within, float* nearest) {
    if (block.atoms * block.width > std::numeric_limits<int32_t>::max())
      throw Error(MDOPS_INVALID, "input: atoms with more neighbours than 32 bits count");
    atoms_ = block.atoms;
    int32_t* const offsets = offsets_.resize(atoms_ + 1);
    const RowListArgs<float> args{slots(block), pair_mask_.data(), zeroed_.data(),
                                  cutoff_.cutoff * cutoff_.cutoff};
    run_row_list(gpu, args,
                 {offsets, slots_.resize(atoms_ * block.width), taken_.resize(atoms_), within, nearest});
    launch_numbers(gpu, empty_kernel, atoms_, offsets, places_, atoms_, empty_.resize(atoms_));
    int32_t* const here = offsets_here_.resize(atoms_ + 1);
    check_cuda(cudaMemcpyAsync(here, offsets, 4 * (atoms_ + 1), cudaMemcpyDeviceToHost, gpu.stream()));
    check_cuda(cudaStreamSynchronize(gpu.stream()));
    rows_ = here[atoms_], longest_ = 0;
    for (int64_t i = 0; i < atoms_; ++i) longest_ = std::max(longest_, here[i + 1] - here[i]);
    const std::vector<int32_t> work = attention_plan(here, atoms_);
    std::copy(work.begin(), work.end(), plan_here_.resize(work.size()));
    plan_.copy(plan_here_.data(), work.size(), gpu.stream());
    items_ = static_cast<int64_t>(work.size()) / kPlanColumns - 1;
  }

  AttentionPlan plan() const { return {plan_.data(), items_, longest_}; }

  SplineRowsArgs<float> splines(const GpuBlock<float>& block) const {
    return {slots(block), slots_.data(), mean_.data(), std_.data(), table_.data(), cutoff_,
            grid_,        rows_,         features_,    functions_,  gated_};
  }

  RowMomentArgs<float> moments() const {
    return {environment_.data(), g_.back().data(), offsets_.data(), rows_, features_, atoms_};
  }

  AxisArgs<float> axis(const float* grad, float* out) const {
    return {atoms_, 4, static_cast<int>(features_), static_cast<int>(axis_), t_.data(), grad, out};
  }

  AttentionLayerArgs<float> args_of(size_t l) const {
    const Layer& layer = layers_[l];
    AttentionLayerArgs<float> args{};
    AttentionArgs<float>& a = args.attention;
    a.rows = rows_, a.heads = 1, a.width = a.value_width = attention_, a.sequences = atoms_;
    a.offsets = offsets_.data(), a.gates = by_angles_ ? 3 : 0, a.scale = layer.scale;
    a.in.gate = by_angles_ ? directions_.data() : nullptr;
    a.in.switches = smooth_ ? switches_.data() : nullptr;
    a.absent = smooth_ ? empty_.data() : nullptr, a.shift = smooth_ ? shift_ : 0.0f;
    args.features = features_, args.normalize = layer.normalize, args.eps = layer.eps;
    args.project = layer.project.data(), args.project_bias = layer.project_bias.data();
    args.out = layer.out.data(), args.out_bias = layer.out_bias.data();
    args.norm = layer.norm.data(), args.norm_bias = layer.norm_bias.data();
    args.g = g_[l].data(), args.saved = layer.saved.data();
    return args;
  }

  const int ntypes_, places_, functions_;
  const int64_t features_, axis_, attention_;  // M and M2; width of the attention
  const bool gated_, smooth_, by_angles_;
  const float shift_;
  const Cutoff<float> cutoff_;
  const SplineGrid<float> grid_;
  GpuArray<float> mean_, std_, table_;
  GpuArray<bool> pair_mask_, zeroed_;
  std::vector<Layer> layers_;

  // Of the last call: memory.
  int64_t atoms_ = 0, rows_ = 0, items_ = 0;
  int32_t longest_ = 0;
  GpuArray<int32_t> offsets_, slots_, taken_, plan_;
  HostArray<int32_t> offsets_here_, plan_here_;
  GpuArray<float> empty_, environment_, switches_, directions_, t_;
  std::vector<GpuArray<float>> g_;  // before each layer and after the last
  GpuArray<float> by_t_, by_environment_, by_switches_, by_directions_, of_directions_, of_switches_, by_g_,
      below_;
  GpuArray<char> memory_;
};

// Moments of all types together, then the gated ones of each type; `size` numbers of a type.
__global__ void join_kernel(const double* plain, const double* gates, int64_t atoms, int ntypes, int64_t size,
                            double* to) {
  const int64_t k = thread_number(), i = k / size, at = k % size;
  if (i >= atoms) return;
  double sum = 0;
  for (int t = 0; t < ntypes; ++t) {
    const int64_t from = (i * ntypes + t) * size + at;
    sum += plain[from];
    to[(i * (ntypes + 1) + 1 + t) * size + at] = gates[from];
  }
  to[i * (ntypes + 1) * size + at] = sum;
}

__global__ void part_kernel(const double* grad, int64_t atoms, int ntypes, int64_t size, double* plain,
                            double* gates) {
  const int64_t k = thread_number(), i = k / size, at = k % size;
  if (i >= atoms) return;
  for (int t = 0; t < ntypes; ++t) {
    const int64_t to = (i * ntypes + t) * size + at;
    plain[to] = grad[i * (ntypes + 1) * size + at];
    gates[to] = grad[(i * (ntypes + 1) + 1 + t) * size + at];
  }
}

class GpuMoments : public GpuOther<double> {
 public:
  GpuMoments(const Sums<double>& sums, const FittingShape& shape, cudaStream_t stream)
      : width_(sums.width),
        axis_(shape.axis),
        columns_(shape.plain ? 1 : 4),
        rows_((sums.ntypes + sums.gated) * sums.basis),
        mixed_(sums.mixed),
        gated_(sums.gated) {
    reach = sums.cutoff, channels = width_ * (shape.plain ? 1 : axis_), counts = sums.ntypes;
    add_limits(sums.mixed, sums.sel, 0, sums.ntypes, limits);
    const int64_t pairs = int64_t{sums.ntypes} * sums.ntypes;
    std::vector<double> mean = sums.mean, std = sums.std;
    if (shape.plain) {
      if (std::count(sums.zeroed.get(), sums.zeroed.get() + pairs, true))
        throw Error(MDOPS_UNSUPPORTED,
                    "on GPUs se_e2_r with excluded pairs of types computes in float32: load it "
                    "in float32, or for the CPU");
      // (s - mean) / std is 1 to the last digit.
      constexpr double large = 1267650600228229401496703205376.0;  // 2^100
      std::fill(mean.begin(), mean.end(), -large), std::fill(std.begin(), std.end(), large);
    }
    args_.mean = mean_.copy(mean.data(), mean.size(), stream),
    args_.std = std_.copy(std.data(), std.size(), stream);
    args_.places = {pair_mask_.copy(sums.pair_mask.get(), pairs, stream),
                    zeroed_.copy(sums.zeroed.get(), pairs, stream),
                    sel_.copy(sums.sel.data(), sums.sel.size(), stream), nullptr, sums.ntypes};
    args_.cutoff = {sums.cutoff, sums.smooth, sums.protection};
    args_.grid = grid_of<double>(sums.basis, sums.s_max), args_.ntypes = sums.ntypes,
    args_.radial = shape.plain;
    std::vector<double> tables;  // without what pads rows
    const int64_t apart = table_width(width_);
    for (int64_t row = 0; row < sums.ntypes * rows_; ++row)
      tables.insert(tables.end(), sums.tables.data() + row * apart,
                    sums.tables.data() + row * apart + width_);
    tables_.copy(tables.data(), tables.size(), stream);
    check_cuda(cudaStreamSynchronize(stream));  // what was copied goes
  }

  bool in_rows() const override { return true; }

  int64_t most_atoms(int64_t width) const override {
    constexpr int64_t most = 1 << 27;  // numbers of the largest array
    return std::max<int64_t>(1, most / std::max({columns_ * rows_, channels, 3 * width}));
  }

  void form(const Gpu& gpu, const GpuBlock<double>& block, double* features, int32_t* within,
            double* nearest) override {
    MomentArgs<double> args = args_of(block);
    double* const moments = moments_.resize(block.atoms * rows_ * columns_);
    if (!gated_) {
      run_spline_moments(gpu, args, block.atoms, moments, within, nearest);
    } else {
      const int64_t size = args_.basis() * columns_, all = block.atoms * args_.ntypes * size;
      run_spline_moments(gpu, args, block.atoms, plain_.resize(all), within, nearest);
      args.gated = true;
      run_spline_moments(gpu, args, block.atoms, gates_.resize(all), again_.resize(block.atoms * counts),
                         nearest);
      launch_numbers(gpu, join_kernel, block.atoms * size, plain_.data(), gates_.data(), block.atoms,
                     args_.ntypes, size, moments);
    }
    const int64_t rows = block.rows->rows;
    double* const t = columns_ == 1 ? features : t_.resize(rows * columns_ * width_);
    run_moment_product(gpu, product(block, static_cast<int>(rows_), static_cast<int>(width_), moments, t));
    if (columns_ > 1) run_axis_features(gpu, axis(rows, nullptr, features));
  }

  void lead_on(const Gpu& gpu, const GpuBlock<double>& block, const double* grad, double* pairs) override {
    const int64_t rows = block.rows->rows, numbers = block.atoms * rows_ * columns_;
    if (columns_ > 1) {
      run_axis_gradients(gpu, axis(rows, grad, by_t_.resize(rows * columns_ * width_)));
      grad = by_t_.data();
    }
    double* const by_moments = by_moments_.resize(numbers);
    gpu.clear(by_moments, 8 * numbers);  // virtual atoms have no rows
    const auto back = product(block, static_cast<int>(width_), static_cast<int>(rows_), grad, by_moments);
    run_moment_gradients(gpu, back, memory_.resize(moment_gradients_bytes(back)));
    MomentArgs<double> args = args_of(block);
    if (!gated_) return run_spline_moment_gradients(gpu, args, block.atoms, by_moments, pairs);
    const int64_t size = args_.basis() * columns_, of_pairs = 3 * block.atoms * block.width;
    launch_numbers(gpu, part_kernel, block.atoms * size, by_moments, block.atoms, args_.ntypes, size,
                   plain_.data(), gates_.data());
    run_spline_moment_gradients(gpu, args, block.atoms, plain_.data(), pairs);
    args.gated = true;
    run_spline_moment_gradients(gpu, args, block.atoms, gates_.data(), of_gates_.resize(of_pairs));
    launch_numbers(gpu, add_kernel<double>, of_pairs, of_gates_.data(), 1.0, of_pairs, pairs);
  }

 private:
  MomentArgs<double> args_of(const GpuBlock<double>& block) const {
    MomentArgs<double> args = args_;
    args.displacements = block.displacements, args.counts = block.counts, args.types = block.types;
    args.width = block.width;
    args.places.padding = mixed_ ? block.zeros : nullptr;  // of type 0, as mean is zero
    return args;
  }

  MomentProductArgs<double> product(const GpuBlock<double>& block, int depth, int width, const double* in,
                                    double* out) const {
    return {block.rows->rows,     block.atoms, columns_, depth,          width, args_.ntypes,
            block.rows->row_atom, block.types, in,       tables_.data(), out};
  }

  AxisArgs<double> axis(int64_t rows, const double* grad, double* out) const {
    return {rows, columns_, static_cast<int>(width_), static_cast<int>(axis_), t_.data(), grad, out};
  }

  const int64_t width_, axis_;
  const int columns_;
  const int64_t rows_;  // of an atom's moments
  const bool mixed_, gated_;
  MomentArgs<double> args_{};
  GpuArray<double> mean_, std_, tables_;
  GpuArray<bool> pair_mask_, zeroed_;
  GpuArray<int32_t> sel_;

  // Of the last call: memory.
  GpuArray<double> moments_, plain_, gates_, t_, by_t_, by_moments_, of_gates_;
  GpuArray<int32_t> again_;
  GpuArray<char> memory_;
};

template <class T>
std::unique_ptr<GpuOther<T>> gpu_other(const GpuBase& base, const File& file, const Json& about,
                                       const std::string& prefix, const Request& request, int64_t ntypes) {
  if (about.at("is_angles").as_bool()) {
    const AngleData<T> data(file, about, prefix, request.precision, ntypes);
    return std::make_unique<GpuAngles<T>>(data, base.stream());
  }
  if constexpr (std::is_same_v<T, float>) {
    const AttentionData<T> data(file, about, prefix, request.precision, ntypes);
    return std::make_unique<GpuAttention>(data, base.stream());
  } else {
    throw Error(MDOPS_UNSUPPORTED,
                "on GPUs layers of attention compute in float32: load it in float32, or for the CPU");
  }
}

// Whether a descriptor's features are all columns of the nets' input, as it has them.
template <class T>
bool is_all(const GpuOther<T>& other, const TypeRows* rows, int64_t columns) {
  return other.channels == columns && (!rows || other.in_rows());
}

}  // namespace

std::unique_ptr<GpuOther<double>> gpu_moments(const Sums<double>& sums, const FittingShape& shape,
                                              cudaStream_t stream) {
  return std::make_unique<GpuMoments>(sums, shape, stream);
}

template <class T>
GpuOther<T>::GpuOther(const OtherData<T>& data, cudaStream_t stream)
    : reach(data.reach), channels(data.channels), constant_count(data.constant_count) {
  constants.copy(data.constants.data(), data.constants.size(), stream);
}

template <class T>
GpuOthers<T>::GpuOthers(const GpuBase& of, const File& file, const Json& about, const std::string& prefix,
                        const Request& request, int32_t ntypes)
    : base_(of), ntypes_(ntypes) {
  const std::vector<Json>& found = others_of(about);
  for (size_t k = 0; k < found.size(); ++k)
    insert(k, gpu_other<T>(of, file, found[k], other_prefix(prefix, k), request, ntypes), request.extends);
}

template <class T>
void GpuOthers<T>::insert(size_t after, std::unique_ptr<GpuOther<T>> other, bool extends) {
  auto part = std::make_unique<Part>();
  part->judge.set(extends ? std::vector<Limit>() : other->limits, base_.stream());
  part->other = std::move(other);
  parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(after), std::move(part));
  widest_ = 0;
  for (size_t k = 1; k < parts_.size(); ++k)
    if (parts_[k]->other->reach > reach()) widest_ = k;
}

template <class T>
int64_t GpuOthers<T>::width() const {
  int64_t sum = 0;
  for (const auto& part : parts_) sum += part->other->width();
  return sum;
}

template <class T>
int64_t GpuOthers<T>::begin(const GpuCall& call) {
  nearest_.resize(call.centers), short_nearest_.resize(call.centers);
  int64_t most = std::max<int64_t>(1, call.centers);
  for (const auto& part : parts_) {
    part->within.resize(call.centers * part->other->counts);
    most = std::min(most, part->other->most_atoms(std::max<int64_t>(1, call.rows.width)));
  }
  return blocks_for(call.centers, std::max<int64_t>(1, blocks_for(call.centers, most)));
}

template <class T>
PairRows GpuOthers<T>::pair_rows(const GpuCall& call, int64_t first, int64_t count) const {
  return {
      call.systems, call.rows.neighbors.data() + first * call.rows.width, call.all, call.rows.width, 1, first,
      count};
}

template <class T>
GpuBlock<T> GpuOthers<T>::block(const GpuCall& call, int64_t first, int64_t count,
                                const TypeRows* rows) const {
  return {first,
          count,
          call.rows.width,
          displacements_.data(),
          call.rows.counts.data() + first * ntypes_,
          call.types + first,
          ntypes_,
          rows,
          call.systems};
}

template <class T>
void GpuOthers<T>::form(const GpuCall& call, int64_t first, int64_t count, const TypeRows* rows,
                        int64_t columns, T* extra) {
  const Gpu gpu = base_.of("compute");
  displacements_.resize(3 * count * call.rows.width);
  run_displacements(gpu, call.positions, call.cell, pair_rows(call, first, count),
                    call.rows.images.data() + first * call.rows.width, displacements_.data());
  const int64_t all = rows ? rows->rows : count;
  for (size_t k = 0; k < parts_.size(); ++k) {
    Part& part = *parts_[k];
    GpuOther<T>& other = *part.other;
    const int64_t channels = other.channels, constants = all * other.constant_count;
    T* const features = is_all(other, rows, columns) ? extra : features_.resize(all * channels);
    other.form(gpu, block(call, first, count, rows), features, part.within.data() + first * other.counts,
               (k == widest_ ? nearest_ : short_nearest_).data() + first);
    if (features == extra) return;  // there is no other
    if (rows)
      launch_numbers(gpu, to_rows_kernel<T>, all * channels, *rows, other.in_rows(), features, channels,
                     channels, extra, columns);
    else
      copy_columns(features, channels, extra, columns, channels, count, base_.stream());
    if (constants)
      launch_numbers(gpu, constants_kernel<T>, constants, call.types + first, rows ? rows->row_atom : nullptr,
                     other.constants.data(), constants, other.constant_count, columns, extra + channels);
    extra += other.width();
  }
}

template <class T>
void GpuOthers<T>::lead_on(const GpuCall& call, int64_t first, int64_t count, const TypeRows* rows,
                           int64_t columns, const T* grad_extra, const PairTotals& to) {
  const Gpu gpu = base_.of("compute");
  const int64_t numbers = 3 * count * call.rows.width, all = rows ? rows->rows : count;
  T* const pairs = pairs_.resize(numbers);
  for (size_t k = 0; k < parts_.size(); ++k) {
    GpuOther<T>& other = *parts_[k]->other;
    const int64_t channels = other.channels;
    const T* grad = grad_extra;
    if (!is_all(other, rows, columns)) {
      T* const to = features_.resize(all * channels);
      if (rows && !other.in_rows())
        launch_numbers(gpu, to_atoms_kernel<T>, all * channels, *rows, grad_extra, columns, channels, to);
      else
        copy_columns(grad_extra, columns, to, channels, channels, all, base_.stream());
      grad = to;
    }
    T* const own = k ? of_one_.resize(numbers) : pairs;
    other.lead_on(gpu, block(call, first, count, rows), grad, own);
    if (k) launch_numbers(gpu, add_kernel<T>, numbers, own, T(1), numbers, pairs);
    grad_extra += other.width();
  }
  const PairRows from = pair_rows(call, first, count);
  run_pair_forces(gpu, from, pairs, displacements_.data(), memory_.resize(pair_forces_bytes<T>(gpu, from)),
                  forces_.resize(3 * call.all), virial_.resize(9), of_atoms_.resize(9 * call.all));
  launch_numbers(gpu, add_kernel<double>, 3 * call.all, forces_.data(), 1.0, 3 * call.all, to.forces);
  launch_numbers(gpu, add_transposed_kernel, 9, virial_.data(), 9, to.virial);
  if (to.of_atoms)
    launch_numbers(gpu, add_transposed_kernel, 9 * call.all, of_atoms_.data(), 9 * call.all, to.of_atoms);
}

template <class T>
void GpuOthers<T>::ask(const GpuCall& call, bool decides, double cutoff, double closest) {
  for (size_t k = 0; k < parts_.size(); ++k) {
    Part& part = *parts_[k];
    const T* const nearest = decides && k == widest_ ? nearest_.data() : nullptr;
    part.judge.ask(base_.of("compute"),
                   Judged<T>{nullptr, nearest, part.within.data(), part.other->counts, cutoff, closest},
                   call.centers);
  }
}

template <class T>
void GpuOthers<T>::judges(std::vector<const Judge*>& to) const {
  for (const auto& part : parts_) to.push_back(&part->judge);
}

template class GpuOthers<float>;
template class GpuOthers<double>;

}  // namespace mdops::core
