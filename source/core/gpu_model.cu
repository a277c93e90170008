// One descriptor of sums on a GPU, by the kernels of the fused step there.
#include <string>
#include <vector>

#include "core/gpu_base.h"
#include "spline_potential/gpu_loops.h"

namespace mdops::core {

namespace {

constexpr int kParts = 2;  // float32's accuracy in the nets' products
using Step = FusedStep<kParts>;

class GpuModel : public GpuBase {
 public:
  GpuModel(const File& file, const Json& about, const Request& request) : GpuBase(about, request) {
    const OnGpu here(index_);
    const DescriptorWeights<float> sums(file, about, "core.", request.precision, ntypes());
    cutoff_ = sums.cutoff, shortest_ = sums.shortest, mixed_ = sums.mixed;
    extra_inputs_.read(file, about, "core.", ntypes());
    takes(extra_inputs_.fparam, extra_inputs_.aparam);
    const FittingNets<float> nets(file, about, "core.", sums, extra_inputs_.width());
    std::vector<Limit> limits;
    if (!extends_) add_limits(mixed_, sums.sel, 0, ntypes(), limits);
    on_device([&] {
      checker_.set(limits, stream());
      sums_ = std::make_unique<GpuDescriptorWeights>(sums, nets.shape, args_, stream());
      args_.extra_size = nets.shape.extra, args_.nets = nets.count;
      args_.net.net = net_shape(nets.shape);
      const std::string refusal =
          Step::refusal(of("load").limits(), nets.shape, args_.ntypes, args_.moment_rows());
      if (!refusal.empty()) throw Error(MDOPS_UNSUPPORTED, "on this GPU it cannot be: " + refusal);
      upload(nets);
    });
  }

 protected:
  void evaluate(const GpuCall& call, mdops_output& output) override {
    StepArgs p = args_;
    set(call, p);
    p.places.padding = mixed_ ? call.systems : nullptr;  // padding of type 0, if needed
    p.extra = extra(call, extra_inputs_, extra_);
    p.energy = energy_.resize(call.all), p.forces = forces_.resize(3 * call.all);
    p.virial = virial_.resize(9);
    p.within = within_.resize(call.all * p.ntypes), p.nearest = nearest_.resize(call.all);
    if (output.atom_virial && call.all) p.atom_virial = atom_virial_.resize(9 * call.all);
    const Gpu gpu = of("compute");
    Step::run(gpu, p, memory_.resize(Step::bytes(gpu, p)));
    checker_.ask(gpu, StepCheckInput<float>{p.energy, p.nearest, p.within, p.ntypes, cutoff_, 0},
                 call.centers);
    bring(call, {p.energy, p.forces, p.virial, p.atom_virial}, output);
    const StepCheck found = checker_.verdict();
    output.energy = found.energy, output.nearest = found.nearest;
    if (found.same != kNone) refuse_place(found.same, output);
    if (found.crowded != kNone) refuse_first(checker_, found.crowded, output);
  }

 private:
  void upload(const FittingNets<float>& nets) {
    args_.scale = scale_.copy(nets.scale, stream());
    args_.shift = shift_.copy(nets.shift, stream());
    args_.net.net_size = packed_size(nets.shape, kParts);
    args_.net.nets = nets_.resize(nets.count * args_.net.net_size);
    GpuArray<float> folded;
    folded.resize(folded_size(nets.shape));
    for (int k = 0; k < nets.count; ++k) {
      std::vector<GpuArray<float>> numbers(3 * (nets.shape.layers + 1));
      const auto on_gpu = [&](int layer, int part) {
        const std::vector<float>& from = nets.numbers(k, layer, part);
        return numbers[3 * layer + part].copy(from, stream());
      };
      std::vector<DenseLayer<float>> layers;
      for (int n = 0; n <= nets.shape.layers; ++n)
        layers.push_back({on_gpu(n, 0), on_gpu(n, 1), on_gpu(n, 2)});
      Step::pack(of("load"), nets.shape, layers, folded.data(), nets_.data() + k * args_.net.net_size);
      check_cuda(cudaStreamSynchronize(stream()));
    }
  }

  bool mixed_ = false;
  ExtraInputs<float> extra_inputs_;
  StepChecker checker_;
  StepArgs args_{};  // only those of the model
  std::unique_ptr<GpuDescriptorWeights> sums_;
  GpuArray<float> nets_;
  GpuArray<double> scale_, shift_;

  // Of the last call: memory.
  GpuArray<double> energy_, forces_, virial_, atom_virial_;
  GpuArray<int32_t> within_;
  GpuArray<float> extra_, nearest_;
  GpuArray<char> memory_;
};

}  // namespace

std::unique_ptr<Model> gpu_model(const File& file, const Json& about, const Request& request) {
  const int count = gpu_count();
  if (request.gpu >= count)
    throw Error(MDOPS_DEVICE, "there is no cuda:" + std::to_string(request.gpu) + ": this process sees " +
                                  std::to_string(count) + " GPUs");
  if (about.find("members") || request.precision == "float64")
    return combined_gpu_model(file, about, request);
  return std::make_unique<GpuModel>(file, about, request);
}

int gpu_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

}  // namespace mdops::core
