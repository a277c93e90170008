// One descriptor of sums on a GPU, by the kernels of the fused step there.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/gpu_judge.h"
#include "core/gpu_list.h"
#include "core/gpu_memory.h"
#include "core/model.h"
#include "core/weights.h"
#include "spline_potential/gpu_loops.h"

namespace mdops::core {

namespace {

constexpr int kParts = 2;  // float32's accuracy in the nets' products

// work(), with what the kernels' launches throw as an error of the device.
template <class Work>
void on_device(const Work& work) {
  try {
    work();
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw Error(MDOPS_DEVICE, error.what());
  }
}

class GpuModel : public Model {
 public:
  GpuModel(const File& file, const Json& about, const Request& request)
      : Model(about, request), index_(request.gpu), search_(request.gpu, ntypes()) {
    const OnGpu here(index_);
    const Sums<float> sums(file, about, "core.", request.precision, ntypes());
    cutoff_ = sums.cutoff, shortest_ = sums.shortest, mixed_ = sums.mixed, sel_ = sums.sel;
    extra_inputs_.read(file, about, "core.", ntypes());
    takes(extra_inputs_.fparam, extra_inputs_.aparam);
    const FittingNets<float> nets(file, about, "core.", sums, extra_inputs_.width());
    sums.set(args_);
    args_.width = nets.shape.width, args_.axis = nets.shape.axis, args_.plain = nets.shape.plain;
    args_.extra_size = nets.shape.extra, args_.nets = nets.count, args_.systems = 1;
    args_.net.net = net_shape(nets.shape);
    const std::string refusal =
        step_refusal(of("load").limits(), nets.shape, args_.ntypes, args_.moment_rows(), kParts);
    if (!refusal.empty()) throw Error(MDOPS_UNSUPPORTED, "on this GPU it cannot be: " + refusal);
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreate(&stream));
    stream_.reset(stream);
    on_device([&] { upload(sums, nets); });
  }

  void set_threads(int) override {}

  mdops_info info() const override {
    mdops_info info = Model::info();
    info.precision = MDOPS_FLOAT32, info.gpu = index_;
    return info;
  }

  void search(const mdops_input& input, double skin, mdops_list& list) override {
    const std::lock_guard<std::mutex> lock(guard_);
    const OnGpu here(index_);
    check_atoms(input);
    if (input.atoms + input.ghosts > 0 && !input.types) throw Error(MDOPS_INVALID, "input: types is null");
    std::unique_ptr<RowsOnGpu> kept = std::move(list.there);
    list.clear();
    if (!kept || kept->gpu != index_) kept = std::make_unique<GpuRows>(index_);
    on_device([&] {
      const int64_t all = input.atoms + input.ghosts;
      const double* const positions = positions_.copy(input.positions, 3 * all, stream_.get());
      search_.run(input, positions, cutoff_ + skin, stream_.get(), static_cast<GpuRows&>(*kept));
    });
    list.there = std::move(kept), list.is_here = false;
    list.atoms = input.atoms, list.ghosts = input.ghosts, list.ntypes = ntypes();
  }

  void compute(const mdops_input& input, mdops_output& output) override {
    const std::lock_guard<std::mutex> lock(guard_);
    const OnGpu here(index_);
    output.atom = -1;
    check(input);
    on_device([&] { answer(input, output); });
  }

 private:
  struct DestroyStream {
    void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  };

  void answer(const mdops_input& input, mdops_output& output) {
    const int64_t centers = input.atoms, all = input.atoms + input.ghosts;
    const double* const positions = positions_.copy(input.positions, 3 * all, stream_.get());
    if (!input.list) search_.run(input, positions, cutoff_, stream_.get(), rows_);
    GpuRows& rows = input.list ? rows_on_gpu(*input.list, index_, stream_.get()) : rows_;
    StepArgs p = args_;
    p.positions = positions, p.atoms = static_cast<int>(all);
    p.cell = cell_.copy(Box(input).cell, 9, stream_.get());
    p.batch = zeros(all);
    p.types = rows.types.data();
    p.neighbors = rows.neighbors.data(), p.images = rows.images.data();
    p.counts = rows.counts.data();
    p.list_width = static_cast<int>(rows.width);
    p.places.padding = mixed_ ? p.batch : nullptr;  // of type 0, as mean is zero
    p.extra = extra(input, p.types, all);
    p.energy = energy_.resize(all), p.forces = forces_.resize(3 * all), p.virial = virial_.resize(9);
    p.within = within_.resize(all * p.ntypes), p.nearest = nearest_.resize(all);
    if (output.atom_virial && all) p.atom_virial = atom_virial_.resize(9 * all);
    const Gpu gpu = of("compute");
    run_step(gpu, p, kParts, memory_.resize(step_bytes(gpu, p, kParts)));
    Verdict* const found = verdicts_.resize(kJudgeBlocks);
    gpu.launch(judge_kernel, kJudgeBlocks, kJudgeThreads, 0, p, centers, mixed_, extends_, found);
    fetch(p.virial, 9, output.virial);
    fetch(found, kJudgeBlocks, verdicts_here_.resize(kJudgeBlocks));
    if (output.forces) fetch(p.forces, 3 * all, output.forces);
    if (output.atom_energy) fetch(p.energy, centers, output.atom_energy);
    if (output.atom_virial) fetch(p.atom_virial, 9 * all, output.atom_virial);
    check_cuda(cudaStreamSynchronize(stream_.get()));
    judge(p, output);
  }

  Gpu of(const char* name) const { return Gpu(name, index_, stream_.get()); }

  template <class T>
  void fetch(const T* from, int64_t count, T* to) const {
    if (count) check_cuda(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDefault, stream_.get()));
  }

  void upload(const Sums<float>& sums, const FittingNets<float>& nets) {
    const cudaStream_t stream = stream_.get();
    const int64_t pairs = int64_t{sums.ntypes} * sums.ntypes;
    args_.mean = mean_.copy(sums.mean.data(), sums.mean.size(), stream);
    args_.std = std_.copy(sums.std.data(), sums.std.size(), stream);
    args_.tables = tables_.copy(sums.tables.data(), sums.tables.size(), stream);
    args_.places.pair_mask = pair_mask_.copy(sums.pair_mask.get(), pairs, stream);
    args_.places.zeroed = zeroed_.copy(sums.zeroed.get(), pairs, stream);
    args_.places.sel = sel_there_.copy(sums.sel.data(), sums.sel.size(), stream);
    args_.scale = scale_.copy(nets.scale.data(), nets.scale.size(), stream);
    args_.shift = shift_.copy(nets.shift.data(), nets.shift.size(), stream);
    args_.net.net_size = packed_size(nets.shape, kParts);
    args_.net.nets = nets_.resize(nets.count * args_.net.net_size);
    GpuArray<float> folded;
    folded.resize(folded_size(nets.shape));
    for (int k = 0; k < nets.count; ++k) {
      std::vector<GpuArray<float>> numbers(3 * (nets.shape.layers + 1));
      const auto there = [&](int layer, int part) {
        const std::vector<float>& from = nets.numbers(k, layer, part);
        return numbers[3 * layer + part].copy(from.data(), from.size(), stream);
      };
      std::vector<DenseLayer<float>> layers;
      for (int n = 0; n <= nets.shape.layers; ++n) layers.push_back({there(n, 0), there(n, 1), there(n, 2)});
      pack_net(of("load"), nets.shape, layers, kParts, folded.data(), nets_.data() + k * args_.net.net_size);
      check_cuda(cudaStreamSynchronize(stream));
    }
  }

  // Zeros for all atoms: their system, and the type of absent neighbours.
  const int32_t* zeros(int64_t all) {
    if (all > zeros_size_) {
      zeros_size_ = all + all / 8;
      check_cuda(cudaMemsetAsync(zeros_.resize(zeros_size_), 0, 4 * zeros_size_, stream_.get()));
    }
    return zeros_.data();
  }

  // What the nets see besides features; formed on the host, as models that take any are few.
  const float* extra(const mdops_input& input, const int32_t* types, int64_t all) {
    const int64_t columns = extra_inputs_.width();
    if (!columns) return nullptr;
    const cudaStream_t stream = stream_.get();
    std::vector<int32_t> kinds(input.atoms);
    std::vector<double> atomic(input.aparam ? input.atoms * extra_inputs_.aparam.size() : 0);
    fetch(types, input.atoms, kinds.data());
    fetch(input.aparam, atomic.size(), atomic.data());
    check_cuda(cudaStreamSynchronize(stream));
    extra_inputs_.fill(input.fparam, atomic.data(), kinds.data(), input.atoms, extra_here_);
    extra_here_.resize(all * columns);
    return extra_.copy(extra_here_.data(), all * columns, stream);
  }

  // Sets the energy and `nearest`; refuses atoms at one place and more neighbours than places.
  void judge(const StepArgs& p, mdops_output& output) const {
    Verdict all{0, static_cast<float>(cutoff_), kNone, kNone};
    bool is_number = true;
    for (int k = 0; k < kJudgeBlocks; ++k) {
      const Verdict& part = verdicts_here_.data()[k];
      all.energy += part.energy;
      is_number &= part.nearest == part.nearest;
      all.nearest = std::min(all.nearest, part.nearest);
      all.same = std::min(all.same, part.same), all.crowded = std::min(all.crowded, part.crowded);
    }
    output.energy = all.energy;
    output.nearest = is_number ? all.nearest : std::numeric_limits<double>::quiet_NaN();
    if (all.same != kNone) refuse_place(all.same, output);
    if (all.crowded == kNone) return;
    std::vector<int32_t> within(p.ntypes);
    fetch(p.within + int64_t{all.crowded} * p.ntypes, p.ntypes, within.data());
    check_cuda(cudaStreamSynchronize(stream_.get()));
    int64_t sum = 0;
    for (int t = 0; t < p.ntypes; ++t) {
      sum += within[t];
      if (!mixed_ && within[t] > sel_[t]) refuse_crowd(all.crowded, t, within[t], sel_[t], output);
    }
    refuse_crowd(all.crowded, -1, sum, sel_[0], output);
  }

  const int index_;
  bool mixed_ = false;
  std::vector<int32_t> sel_;
  ExtraInputs<float> extra_inputs_;
  std::unique_ptr<CUstream_st, DestroyStream> stream_;
  StepArgs args_{};  // what of them is the model's

  // The model's.
  GpuArray<float> mean_, std_, tables_, nets_;
  GpuArray<bool> pair_mask_, zeroed_;
  GpuArray<int32_t> sel_there_;
  GpuArray<double> scale_, shift_;

  // Of the last call: memory.
  GpuSearch search_;
  GpuRows rows_{index_};
  GpuArray<double> positions_, cell_, energy_, forces_, virial_, atom_virial_;
  GpuArray<int32_t> zeros_, within_;
  int64_t zeros_size_ = 0;
  GpuArray<float> extra_, nearest_;
  std::vector<float> extra_here_;
  GpuArray<char> memory_;
  GpuArray<Verdict> verdicts_;
  HostArray<Verdict> verdicts_here_;
};

}  // namespace

std::unique_ptr<Model> gpu_model(const File& file, const Json& about, const Request& request) {
  if (request.precision != "float32")
    throw Error(MDOPS_UNSUPPORTED, "on a GPU this library computes in float32: float64 is the CPU's");
  const int count = gpu_count();
  if (request.gpu >= count)
    throw Error(MDOPS_DEVICE, "there is no cuda:" + std::to_string(request.gpu) + ": this process sees " +
                                  std::to_string(count) + " GPUs");
  return std::make_unique<GpuModel>(file, about, request);
}

int gpu_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

}  // namespace mdops::core
