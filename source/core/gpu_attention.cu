// DPA-1 with layers of attention on a GPU, in float32.
#include <algorithm>
#include <limits>
#include <utility>

#include "attention_layer/gpu_loops.h"
#include "axis_product/gpu_loops.h"
#include "core/gpu_extra_descriptors.h"
#include "core/gpu_numbers.h"
#include "neighbor_rows/gpu_loops.h"

namespace mdops::core {

namespace {

__global__ void scale_kernel(float* numbers, float factor, int64_t count) {
  const int64_t k = thread_number();
  if (k < count) numbers[k] *= factor;
}

// Counts the empty places.
__global__ void empty_kernel(const int32_t* offsets, int32_t places, int64_t atoms, float* empty) {
  const int64_t i = thread_number();
  if (i < atoms) empty[i] = static_cast<float>(max(0, places - (offsets[i + 1] - offsets[i])));
}

// DPA-1: rows of neighbours by splines, layers of attention, T^T T_<.
class GpuAttention : public GpuExtraDescriptor<float> {
 public:
  GpuAttention(const AttentionData<float>& data, cudaStream_t stream)
      : GpuExtraDescriptor<float>(data, stream),
        ntypes_(data.ntypes),
        places_(data.sel[0]),
        functions_(data.ntypes + data.gated),
        features_(data.features),
        columns_(data.columns),
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
    const auto copy = [&](const auto& from, auto& to) { to.copy(from, stream); };
    const int64_t pairs = int64_t{ntypes_} * ntypes_;
    copy(data.mean, mean_), copy(data.std, std_), copy(data.table, table_);
    pair_mask_.copy(data.pair_mask.get(), pairs, stream), zeroed_.copy(data.zeroed.get(), pairs, stream);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const AttentionData<float>::Layer& from = data.layers[l];
      Layer& to = layers_[l];
      copy(from.project, to.project), copy(from.project_bias, to.project_bias), copy(from.out, to.out);
      copy(from.factors, to.factors), to.projects = !from.project.empty(), to.scales = !from.factors.empty();
      to.width = from.width, copy(from.out_bias, to.out_bias), copy(from.norm, to.norm),
      copy(from.norm_bias, to.norm_bias);
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

  void forward(const Gpu& gpu, const GpuBlock<float>& block, float* features, int32_t* within,
               float* nearest) override {
    list(gpu, block, within, nearest);
    environment_.resize(4 * rows_), switches_.resize(rows_), directions_.resize(3 * rows_);
    for (size_t l = 0; l < g_.size(); ++l) g_[l].resize(rows_ * (l ? features_ : columns_));
    run_spline_rows(gpu, splines(block),
                    {environment_.data(), switches_.data(), directions_.data(), g_[0].data()});
    for (size_t l = 0; l < layers_.size(); ++l) {
      layers_[l].saved.resize(rows_ * args_of(l).kept());
      const AttentionLayerArgs<float> args = args_of(l);
      run_attention_layer(gpu, args, plan(), memory_.resize(attention_layer_bytes(args, false)),
                          g_[l + 1].data());
    }
    const int64_t numbers = 4 * features_ * atoms_;
    run_row_moments(gpu, moments(), t_.resize(numbers));
    launch_numbers(gpu, scale_kernel, numbers, t_.data(), 1.0f / places_, numbers);
    run_axis_features(gpu, axis(nullptr, features));
  }

  void backward(const Gpu& gpu, const GpuBlock<float>& block, const float* grad, float* pairs) override {
    const int64_t numbers = 4 * features_ * atoms_;
    run_axis_gradients(gpu, axis(grad, by_t_.resize(numbers)));
    launch_numbers(gpu, scale_kernel, numbers, by_t_.data(), 1.0f / places_, numbers);
    float *by_g = by_g_.resize(rows_ * columns_), *below = below_.resize(rows_ * columns_);
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
    GpuArray<float> project, project_bias, out, out_bias, norm, norm_bias, factors;
    int64_t width;
    float scale, eps;
    bool normalize, projects, scales;
    GpuArray<float> saved;  // of the last call
  };

  SlotArgs<float> slots(const GpuBlock<float>& block) const {
    return {block.displacements, block.counts, block.types, block.atoms, block.width, ntypes_};
  }

  // Finds the neighbours that are rows; waits for their number.
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
    return {{slots(block), slots_.data(), mean_.data(), std_.data(), cutoff_, rows_},
            table_.data(),
            grid_,
            columns_,
            functions_,
            gated_};
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
    a.rows = rows_, a.heads = 1, a.width = a.value_width = layer.width, a.sequences = atoms_;
    a.offsets = offsets_.data(), a.gates = by_angles_ ? 3 : 0, a.scale = layer.scale;
    a.in.gate = by_angles_ ? directions_.data() : nullptr;
    a.in.switches = smooth_ ? switches_.data() : nullptr;
    a.absent = smooth_ ? empty_.data() : nullptr, a.shift = smooth_ ? shift_ : 0.0f;
    args.features = features_, args.columns = layer.projects ? features_ : columns_;
    args.normalize = layer.normalize, args.eps = layer.eps;
    if (layer.projects) args.project = layer.project.data(), args.project_bias = layer.project_bias.data();
    if (layer.scales) args.factors = layer.factors.data();
    args.out = layer.out.data(), args.out_bias = layer.out_bias.data();
    args.norm = layer.norm.data(), args.norm_bias = layer.norm_bias.data();
    args.g = g_[l].data(), args.saved = layer.saved.data();
    return args;
  }

  const int ntypes_, places_, functions_;
  const int64_t features_, columns_, axis_, attention_;  // M, of the splines, M2; width of the widest layer
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

}  // namespace

std::unique_ptr<GpuExtraDescriptor<float>> gpu_attention(const AttentionData<float>& data,
                                                         cudaStream_t stream) {
  return std::make_unique<GpuAttention>(data, stream);
}

}  // namespace mdops::core
