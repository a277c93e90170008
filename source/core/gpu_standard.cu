// Standard models on a GPU: descriptors and nets.
#include <algorithm>
#include <type_traits>

#include "core/combined_data.h"
#include "core/gpu_extra_descriptors.h"
#include "core/gpu_numbers.h"
#include "core/gpu_parts.h"
#include "hybrid_potential/gpu_loops.h"

namespace mdops::core {

namespace {

// work(first, count) for all atoms, some at once.
void each_run(int64_t atoms, int64_t run, const auto& work) {
  for (int64_t first = 0; first < atoms; first += run) work(first, std::min(run, atoms - first));
}

void clear(const Gpu& gpu, const GpuCall& call, const PairTotals& totals, PartAnswer& answer) {
  gpu.clear(answer.energy.data(), 8 * call.all);
  gpu.clear(totals.forces, 24 * call.all), gpu.clear(totals.virial, 72);
  if (totals.of_atoms) gpu.clear(totals.of_atoms, 72 * call.all);
}

// A standard model: descriptors of sums, and others, with a fitting net.
class GpuStandardPart : public GpuPart {
 public:
  GpuStandardPart(const GpuBase& of, const File& file, const Json& about, const std::string& prefix,
                  const Request& request, int32_t ntypes)
      : GpuPart(of), extras_(of, file, about, prefix, request, ntypes) {
    const StandardWeights<float> own(file, about, prefix, request.precision, ntypes, extras_.width());
    inputs_ = own.inputs, widest_ = own.widest, has_sums_ = !own.sums.empty();
    cutoff_ = has_sums_ ? own.sums[widest_]->cutoff : 0;
    extra_decides_ = extras_.reach() > cutoff_;
    cutoff_ = std::max(cutoff_, extras_.reach());
    parameters[0] = &inputs_.fparam, parameters[1] = &inputs_.aparam;
    const cudaStream_t stream = base_.stream();
    checker_.set(request.extends ? std::vector<Limit>() : own.limits, stream);
    scale_.copy(own.scale, stream);
    shift_.copy(own.shift, stream);
    for (size_t p = 0; p < std::max<size_t>(1, own.sums.size()); ++p) {
      StepArgs args{};
      if (has_sums_) {
        sums_.push_back(std::make_unique<GpuDescriptorWeights>(*own.sums[p], own.shapes[p], args, stream));
        mixed_.push_back(own.sums[p]->mixed);
      }
      args.ntypes = ntypes, args.scale = scale_.data(), args.shift = shift_.data();
      args.extra_size = own.net.extra, args.nets = own.count;
      args_.push_back(args);
    }
    StepArgs& p = args_[widest_];
    p.net.net = hybrid_net(own.shapes, own.net);
    const std::string refusal = hybrid_refusal(base_.of("load").limits(), p.net.net, args_);
    if (!refusal.empty()) throw Error(MDOPS_UNSUPPORTED, "on this GPU it cannot be: " + refusal);
    p.net.net_size = hybrid_packed_size(p.net.net);
    p.net.nets = nets_.resize(own.count * p.net.net_size);
    for (int k = 0; k < own.count; ++k) upload(own, k);
  }

  void run(const GpuCall& call, const double* weight, bool of_atoms, PartAnswer& answer) override {
    const Gpu gpu = base_.of("compute");
    const PairTotals totals{answer.forces.data(), answer.virial.data(),
                            of_atoms && call.all ? answer.atom_virial.data() : nullptr};
    const int64_t columns = args_[0].extra_size;
    const float* const given = base_.extra(call, inputs_, given_);
    float* const grad_extra = grad_extra_.resize(call.all * columns);
    if (extras_.empty()) return step(gpu, call, weight, given, grad_extra, totals, answer);
    float* const extra = extra_.resize(call.centers * columns);
    copy_columns(given, inputs_.width(), extra + extras_.width(), columns, inputs_.width(), call.centers,
                 base_.stream());
    const int64_t run = extras_.begin(call);
    const auto each_run = [&](const auto& work) { mdops::core::each_run(call.centers, run, work); };
    const auto forward = [&](int64_t first, int64_t count) {
      extras_.forward(call, first, count, nullptr, columns, extra + first * columns);
    };
    const auto backward = [&](int64_t first, int64_t count) {
      extras_.backward(call, first, count, nullptr, columns, grad_extra + first * columns, totals);
    };
    if (!has_sums_) {
      clear(gpu, call, totals, answer);
      each_run([&](int64_t first, int64_t count) {
        forward(first, count);
        net(gpu, call, first, count, weight, extra, grad_extra, answer);
        backward(first, count);
      });
    } else {
      each_run(forward);
      step(gpu, call, weight, extra, grad_extra, totals, answer);
      each_run([&](int64_t first, int64_t count) {
        if (count < call.centers) forward(first, count);  // saved values are of the last run
        backward(first, count);
      });
    }
  }

  void ask(const GpuCall& call, double closest) override {
    const int counts = static_cast<int>(args_.size()) * args_[0].ntypes;
    const float* const nearest = extra_decides_ ? nullptr : nearest_.data();
    if (has_sums_)
      checker_.ask(base_.of("compute"),
                   StepCheckInput<float>{nullptr, nearest, within_.data(), counts, cutoff_, closest},
                   call.centers);
    extras_.ask(call, extra_decides_, cutoff_, closest);
  }

  std::vector<const StepChecker*> checkers() const override {
    std::vector<const StepChecker*> all;
    if (has_sums_) all.push_back(&checker_);
    extras_.checkers(all);
    return all;
  }

 private:
  // The step of descriptors of sums and the net.
  void step(const Gpu& gpu, const GpuCall& call, const double* weight, const float* extra, float* grad_extra,
            const PairTotals& totals, PartAnswer& answer) {
    std::vector<StepArgs> parts = args_;
    for (size_t k = 0; k < parts.size(); ++k) {
      base_.set(call, parts[k]);
      parts[k].places.padding = mixed_[k] ? call.systems : nullptr;  // padding of type 0, if needed
      parts[k].extra = extra;
    }
    StepArgs& p = parts[widest_];
    p.energy = answer.energy.data(), p.forces = totals.forces, p.virial = totals.virial;
    p.nearest = nearest_.resize(call.all), p.atom_virial = totals.of_atoms;
    const int64_t counts = static_cast<int64_t>(args_.size()) * args_[0].ntypes;
    const HybridOut out{weight, grad_extra, within_.resize(call.all * counts)};
    void* const memory = answer.memory.resize(hybrid_bytes(gpu, parts, widest_, out));
    run_hybrid(gpu, parts, widest_, out, memory);
  }

  // Only the net, for some atoms.
  void net(const Gpu& gpu, const GpuCall& call, int64_t first, int64_t count, const double* weight,
           const float* extra, float* grad_extra, PartAnswer& answer) {
    std::vector<StepArgs> parts = args_;
    StepArgs& p = parts[0];
    base_.set(call, p);
    p.positions += 3 * first, p.types += first, p.list_width = 0;
    p.atoms = gpu.int32_of("atoms", count);
    p.energy = answer.energy.data() + first, p.extra = extra + first * p.extra_size;
    const HybridOut out{weight ? weight + first : nullptr, grad_extra + first * p.extra_size, nullptr};
    void* const memory = answer.memory.resize(hybrid_bytes(gpu, parts, 0, out));
    run_hybrid(gpu, parts, 0, out, memory);
  }

  void upload(const StandardWeights<float>& own, int net) {
    const cudaStream_t stream = base_.stream();
    std::vector<float> first;
    std::vector<DenseLayer<float>> layers = own.layers(net, first);
    int64_t inputs = own.net.neurons[0] ? static_cast<int64_t>(first.size()) / own.net.neurons[0] : 0;
    std::vector<GpuArray<float>> numbers(3 * layers.size());
    for (size_t n = 0; n < layers.size(); ++n) {
      const bool hidden = n + 1 < layers.size();
      const int64_t outputs = hidden ? own.net.neurons[n] : 1;
      layers[n].weight = numbers[3 * n].copy(layers[n].weight, inputs * outputs, stream);
      layers[n].bias = numbers[3 * n + 1].copy(layers[n].bias, outputs, stream);
      if (hidden) layers[n].timestep = numbers[3 * n + 2].copy(layers[n].timestep, outputs, stream);
      inputs = outputs;
    }
    const NetArgs& to = args_[widest_].net;
    GpuArray<float> folded;
    pack_hybrid(base_.of("load"), own.shapes, to.net, own.net.extra, layers,
                folded.resize(hybrid_folded_size(to.net)), nets_.data() + net * to.net_size);
    check_cuda(cudaStreamSynchronize(stream));
  }

  GpuExtraDescriptors<float> extras_;
  double cutoff_ = 0;
  int widest_ = 0;
  bool has_sums_ = false, extra_decides_ = false;  // about the nearest neighbour
  std::vector<bool> mixed_;
  ExtraInputs<float> inputs_;
  std::vector<std::unique_ptr<GpuDescriptorWeights>> sums_;
  std::vector<StepArgs> args_;
  GpuArray<float> nets_;
  GpuArray<double> scale_, shift_;

  // Of the last call: memory.
  GpuArray<float> given_, extra_, grad_extra_, nearest_;
  GpuArray<int32_t> within_;
};

// A standard model in float64, or one whose first layer adds its input: all descriptors one by one, then the
// nets of types.
template <class T>
class GpuRowsPart : public GpuPart {
 public:
  GpuRowsPart(const GpuBase& of, const File& file, const Json& about, const std::string& prefix,
              const Request& request, int32_t ntypes)
      : GpuPart(of), ntypes_(ntypes), extras_(of, file, about, prefix, request, ntypes) {
    const StandardWeights<T> own(file, about, prefix, request.precision, ntypes, extras_.width());
    add_descriptors(own.sums, own.shapes, request);
    set(own.inputs, own.net, own.count, own.scale, own.shift, [&](int k, const auto& take) {
      std::vector<T> first;
      take(own.layers(k, first));
    });
    if (!own.sums.empty()) nets_.shape.residual[0] = false;  // as kernels of features assume
  }

  // Of a file with one descriptor of sums alone.
  GpuRowsPart(const GpuBase& of, const File& file, const Json& about, const Request& request, int32_t ntypes)
      : GpuPart(of), ntypes_(ntypes), extras_(of, file, about, "core.", request, ntypes) {
    std::vector<std::unique_ptr<DescriptorWeights<T>>> sums;
    sums.push_back(std::make_unique<DescriptorWeights<T>>(file, about, "core.", request.precision, ntypes));
    ExtraInputs<T> inputs;
    inputs.read(file, about, "core.", ntypes);
    const FittingNets<T> nets(file, about, "core.", *sums[0], inputs.width());
    add_descriptors(sums, {nets.shape}, request);
    set(inputs, nets.shape, nets.count, nets.scale, nets.shift,
        [&](int k, const auto& take) { take(nets.layers(k)); });
    nets_.shape.residual[0] = false;
  }

  void run(const GpuCall& call, const double* weight, bool of_atoms, PartAnswer& answer) override {
    const Gpu gpu = base_.of("compute");
    const PairTotals totals{answer.forces.data(), answer.virial.data(),
                            of_atoms && call.all ? answer.atom_virial.data() : nullptr};
    const T* const given = base_.extra(call, inputs_, given_);
    clear(gpu, call, totals, answer);
    each_run(call.centers, extras_.begin(call), [&](int64_t first, int64_t count) {
      void* const order = order_.resize(type_rows_bytes(gpu, count, ntypes_));
      const TypeRows rows = run_type_rows(gpu, call.positions + 3 * first, call.types + first, call.systems,
                                          count, ntypes_, order);
      const int64_t columns = nets_.inputs, more = inputs_.width();
      T *const x = x_.resize(rows.rows * columns), *const grad = grad_.resize(rows.rows * columns);
      extras_.forward(call, first, count, &rows, columns, x);
      if (more)
        launch_numbers(gpu, to_rows_kernel<T>, rows.rows * more, rows, false, given + first * more, more,
                       more, x + columns - more, columns);
      run_type_nets(gpu, nets_, rows, x, weight ? weight + first : nullptr,
                    answer.memory.resize(type_nets_bytes(nets_, rows)), answer.energy.data() + first, grad);
      extras_.backward(call, first, count, &rows, columns, grad, totals);
    });
  }

  void ask(const GpuCall& call, double closest) override {
    extras_.ask(call, true, extras_.reach(), closest);
  }

  std::vector<const StepChecker*> checkers() const override {
    std::vector<const StepChecker*> all;
    extras_.checkers(all);
    return all;
  }

 private:
  void add_descriptors(const std::vector<std::unique_ptr<DescriptorWeights<T>>>& sums,
                       const std::vector<FittingShape>& shapes, const Request& request) {
    if constexpr (std::is_same_v<T, double>)
      for (size_t p = 0; p < sums.size(); ++p)
        extras_.insert(p, gpu_moments(*sums[p], shapes[p], base_.stream()), request.extends);
  }

  // `each_net(k, take)` calls take(layers) with those of net k.
  void set(const ExtraInputs<T>& inputs, const NetShape& shape, int count, const std::vector<double>& scale,
           const std::vector<double>& shift, const auto& each_net) {
    const cudaStream_t stream = base_.stream();
    if (ntypes_ > kMostNetTypes)
      throw Error(MDOPS_UNSUPPORTED, "on GPUs models have " + std::to_string(kMostNetTypes) +
                                         " types at most: choose some (--elements), or load it for the CPU");
    inputs_ = inputs, parameters[0] = &inputs_.fparam, parameters[1] = &inputs_.aparam;
    nets_.shape = shape, nets_.nets = count;
    nets_.inputs = static_cast<int>(extras_.width() + inputs.width());
    nets_.scale = scale_.copy(scale, stream);
    nets_.shift = shift_.copy(shift, stream);
    numbers_ = std::vector<GpuArray<T>>(4 * (shape.layers + 1));
    std::vector<std::vector<T>> here(numbers_.size());
    for (int k = 0; k < count; ++k)
      each_net(k, [&](const std::vector<DenseLayer<T>>& layers) {
        for (int n = 0; n <= shape.layers; ++n) append(n, layers[n], &here[4 * n]);
      });
    for (int n = 0; n <= shape.layers; ++n) {
      const T* at[4];
      for (int part = 0; part < 4; ++part)
        at[part] = numbers_[4 * n + part].copy(here[4 * n + part].data(), here[4 * n + part].size(), stream);
      nets_.layers[n] = {at[0], at[1], at[2], at[3]};
    }
    check_cuda(cudaStreamSynchronize(stream));  // `here` goes
  }

  // Appends weights (also transposed, if products need that), biases and timesteps.
  void append(int n, const DenseLayer<T>& layer, std::vector<T>* to) const {
    const NetShape& shape = nets_.shape;
    const bool hidden = n < shape.layers;
    const int64_t inputs = n ? shape.neurons[n - 1] : nets_.inputs, outputs = hidden ? shape.neurons[n] : 1;
    to[0].insert(to[0].end(), layer.weight, layer.weight + inputs * outputs);
    for (int64_t k = 0; std::is_same_v<T, float> && k < inputs * outputs; ++k)
      to[1].push_back(layer.weight[k % inputs * outputs + k / inputs]);
    to[2].insert(to[2].end(), layer.bias, layer.bias + outputs);
    if (hidden) to[3].insert(to[3].end(), layer.timestep, layer.timestep + outputs);
  }

  const int32_t ntypes_;
  GpuExtraDescriptors<T> extras_;
  ExtraInputs<T> inputs_;
  TypeNets<T> nets_{};
  std::vector<GpuArray<T>> numbers_;
  GpuArray<double> scale_, shift_;

  // Of the last call: memory.
  GpuArray<T> given_, x_, grad_;
  GpuArray<char> order_;
};

}  // namespace

std::unique_ptr<GpuPart> make_member(const GpuBase& of, const File& file, const Json& about,
                                     const std::string& prefix, const Request& request, int32_t ntypes) {
  if (request.precision == "float64")
    return std::make_unique<GpuRowsPart<double>>(of, file, about, prefix, request, ntypes);
  const std::vector<Json>& adds = about.at("residual").as_list();
  if (about.at("descriptors").as_list().empty() && !adds.empty() && adds[0].as_bool())
    return std::make_unique<GpuRowsPart<float>>(of, file, about, prefix, request, ntypes);
  return std::make_unique<GpuStandardPart>(of, file, about, prefix, request, ntypes);
}

std::unique_ptr<GpuPart> make_single_member(const GpuBase& of, const File& file, const Json& about,
                                            const Request& request, int32_t ntypes) {
  return std::make_unique<GpuRowsPart<double>>(of, file, about, request, ntypes);
}

}  // namespace mdops::core
