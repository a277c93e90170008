// Models of several descriptors, of several models, and of pair tables, on a GPU: each part by its kernels,
// over one list, one after the other in one stream.
#include <memory>
#include <string>
#include <vector>

#include "core/composed_data.h"
#include "core/error.h"
#include "core/gpu_others.h"
#include "core/gpu_sums.h"
#include "hybrid_potential/gpu_loops.h"
#include "pair_table/gpu_loops.h"

namespace mdops::core {

namespace {

constexpr int kThreads = kNumberThreads;

// 1 for atoms of types that have an energy, 0 for the others.
__global__ void counted_kernel(const int32_t* types, const uint8_t* has_energy, int64_t atoms,
                               double* weight) {
  const int64_t i = thread_number();
  if (i < atoms) weight[i] = types[i] < 0 ? 0.0 : has_energy[types[i]];
}

// How the parts of a blend are weighted.
__global__ void blend_weights_kernel(const double* near, const double* counted, int64_t atoms, double* far,
                                     double* table) {
  const int64_t i = thread_number();
  if (i < atoms) far[i] = (1 - near[i]) * counted[i], table[i] = near[i] * counted[i];
}

// Energies with a number of each type added.
__global__ void shift_kernel(const double* from, const int32_t* types, const double* bias, double factor,
                             int64_t atoms, double* to) {
  const int64_t i = thread_number();
  if (i < atoms) to[i] = from[i] + (types[i] < 0 ? 0.0 : factor * bias[types[i]]);
}

// A table's NaN is of atoms that are too near, and those alone have it.
__global__ void blend_kernel(const double* near, const double* far_energy, const double* table_energy,
                             int64_t atoms, double* energy) {
  const int64_t i = thread_number();
  if (i >= atoms) return;
  energy[i] = (1 - near[i]) * far_energy[i] + (near[i] != 0 ? near[i] * table_energy[i] : 0.0);
}

__global__ void finish_kernel(const int32_t* types, const uint8_t* has_energy, const double* bias,
                              int64_t atoms, double* energy) {
  const int64_t i = thread_number();
  if (i >= atoms) return;
  const int type = types[i];
  energy[i] = type < 0 || !has_energy[type] ? 0.0 : energy[i] + bias[type];
}

// What a part answers with, memory that the parts share: energies (all,) without weights, the rest with them.
struct PartAnswer {
  GpuArray<double> energy, forces, virial, atom_virial;
  GpuArray<char> memory;

  void resize(int64_t all, bool of_atoms) {
    energy.resize(all), forces.resize(3 * all), virial.resize(9);
    if (of_atoms) atom_virial.resize(9 * all);
  }
};

class GpuPart {
 public:
  virtual ~GpuPart() = default;
  // With weights of the atoms, or null.
  virtual void run(const GpuCall& call, const double* weight, bool of_atoms, PartAnswer& answer) = 0;
  // What there is to say of the neighbours of `run`.
  virtual void ask(const GpuCall& call, double closest) = 0;
  // Of those who were asked.
  virtual std::vector<const Judge*> judges() const { return {&judge_}; }
  const Parameters* parameters[2] = {};  // of frames and atoms

 protected:
  explicit GpuPart(const GpuBase& of) : base_(of) {}

  const GpuBase& base_;
  Judge judge_;
};

// work(first, count) for all atoms, so many at once.
template <class Work>
void each_run(int64_t atoms, int64_t run, const Work& work) {
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
      : GpuPart(of), others_(of, file, about, prefix, request, ntypes) {
    const SumsData<float> own(file, about, prefix, request.precision, ntypes, others_.width());
    inputs_ = own.inputs, widest_ = own.widest, has_sums_ = !own.sums.empty();
    cutoff_ = has_sums_ ? own.sums[widest_]->cutoff : 0;
    other_decides_ = others_.reach() > cutoff_;
    cutoff_ = std::max(cutoff_, others_.reach());
    parameters[0] = &inputs_.fparam, parameters[1] = &inputs_.aparam;
    const cudaStream_t stream = base_.stream();
    judge_.set(request.extends ? std::vector<Limit>() : own.limits, stream);
    scale_.copy(own.scale.data(), own.scale.size(), stream);
    shift_.copy(own.shift.data(), own.shift.size(), stream);
    for (size_t p = 0; p < std::max<size_t>(1, own.sums.size()); ++p) {
      StepArgs args{};
      if (has_sums_) {
        sums_.push_back(std::make_unique<GpuSums>(*own.sums[p], own.shapes[p], args, stream));
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
    if (others_.empty()) return step(gpu, call, weight, given, grad_extra, totals, answer);
    float* const extra = extra_.resize(call.centers * columns);
    copy_columns(given, inputs_.width(), extra + others_.width(), columns, inputs_.width(), call.centers,
                 base_.stream());
    const int64_t run = others_.begin(call);
    const auto each_run = [&](const auto& work) { mdops::core::each_run(call.centers, run, work); };
    const auto form = [&](int64_t first, int64_t count) {
      others_.form(call, first, count, nullptr, columns, extra + first * columns);
    };
    const auto lead_on = [&](int64_t first, int64_t count) {
      others_.lead_on(call, first, count, nullptr, columns, grad_extra + first * columns, totals);
    };
    if (!has_sums_) {
      clear(gpu, call, totals, answer);
      each_run([&](int64_t first, int64_t count) {
        form(first, count);
        net(gpu, call, first, count, weight, extra, grad_extra, answer);
        lead_on(first, count);
      });
    } else {
      each_run(form);
      step(gpu, call, weight, extra, grad_extra, totals, answer);
      each_run([&](int64_t first, int64_t count) {
        if (count < call.centers) form(first, count);  // what it kept is that of the last run
        lead_on(first, count);
      });
    }
  }

  void ask(const GpuCall& call, double closest) override {
    const int counts = static_cast<int>(args_.size()) * args_[0].ntypes;
    const float* const nearest = other_decides_ ? nullptr : nearest_.data();
    if (has_sums_)
      judge_.ask(base_.of("compute"),
                 Judged<float>{nullptr, nearest, within_.data(), counts, cutoff_, closest}, call.centers);
    others_.ask(call, other_decides_, cutoff_, closest);
  }

  std::vector<const Judge*> judges() const override {
    std::vector<const Judge*> all;
    if (has_sums_) all.push_back(&judge_);
    others_.judges(all);
    return all;
  }

 private:
  // Of descriptors of sums and the net.
  void step(const Gpu& gpu, const GpuCall& call, const double* weight, const float* extra, float* grad_extra,
            const PairTotals& totals, PartAnswer& answer) {
    std::vector<StepArgs> parts = args_;
    for (size_t k = 0; k < parts.size(); ++k) {
      base_.set(call, parts[k]);
      parts[k].places.padding = mixed_[k] ? call.systems : nullptr;  // of type 0, as mean is zero
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

  // Of the net alone, for some atoms.
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

  void upload(const SumsData<float>& own, int net) {
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

  GpuOthers<float> others_;
  double cutoff_ = 0;
  int widest_ = 0;
  bool has_sums_ = false, other_decides_ = false;  // about the nearest neighbour
  std::vector<bool> mixed_;
  ExtraInputs<float> inputs_;
  std::vector<std::unique_ptr<GpuSums>> sums_;
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
      : GpuPart(of), ntypes_(ntypes), others_(of, file, about, prefix, request, ntypes) {
    const SumsData<T> own(file, about, prefix, request.precision, ntypes, others_.width());
    add_sums(own.sums, own.shapes, request);
    set(own.inputs, own.net, own.count, own.scale, own.shift, [&](int k, const auto& take) {
      std::vector<T> first;
      take(own.layers(k, first));
    });
    if (!own.sums.empty()) nets_.shape.residual[0] = false;  // as all kernels of features have it
  }

  // Of a file with one descriptor of sums alone.
  GpuRowsPart(const GpuBase& of, const File& file, const Json& about, const Request& request, int32_t ntypes)
      : GpuPart(of), ntypes_(ntypes), others_(of, file, about, "core.", request, ntypes) {
    std::vector<std::unique_ptr<Sums<T>>> sums;
    sums.push_back(std::make_unique<Sums<T>>(file, about, "core.", request.precision, ntypes));
    ExtraInputs<T> inputs;
    inputs.read(file, about, "core.", ntypes);
    const FittingNets<T> nets(file, about, "core.", *sums[0], inputs.width());
    add_sums(sums, {nets.shape}, request);
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
    each_run(call.centers, others_.begin(call), [&](int64_t first, int64_t count) {
      void* const order = order_.resize(type_rows_bytes(gpu, count, ntypes_));
      const TypeRows rows = run_type_rows(gpu, call.positions + 3 * first, call.types + first, call.systems,
                                          count, ntypes_, order);
      const int64_t columns = nets_.inputs, more = inputs_.width();
      T *const x = x_.resize(rows.rows * columns), *const grad = grad_.resize(rows.rows * columns);
      others_.form(call, first, count, &rows, columns, x);
      if (more)
        launch_numbers(gpu, to_rows_kernel<T>, rows.rows * more, rows, false, given + first * more, more,
                       more, x + columns - more, columns);
      run_type_nets(gpu, nets_, rows, x, weight ? weight + first : nullptr,
                    answer.memory.resize(type_nets_bytes(nets_, rows)), answer.energy.data() + first, grad);
      others_.lead_on(call, first, count, &rows, columns, grad, totals);
    });
  }

  void ask(const GpuCall& call, double closest) override {
    others_.ask(call, true, others_.reach(), closest);
  }

  std::vector<const Judge*> judges() const override {
    std::vector<const Judge*> all;
    others_.judges(all);
    return all;
  }

 private:
  void add_sums(const std::vector<std::unique_ptr<Sums<T>>>& sums, const std::vector<FittingShape>& shapes,
                const Request& request) {
    if constexpr (std::is_same_v<T, double>)
      for (size_t p = 0; p < sums.size(); ++p)
        others_.insert(p, gpu_moments(*sums[p], shapes[p], base_.stream()), request.extends);
  }

  // `each_net(k, take)` calls take(layers) with those of net k.
  template <class EachNet>
  void set(const ExtraInputs<T>& inputs, const NetShape& shape, int count, const std::vector<double>& scale,
           const std::vector<double>& shift, const EachNet& each_net) {
    const cudaStream_t stream = base_.stream();
    if (ntypes_ > kMostNetTypes)
      throw Error(MDOPS_UNSUPPORTED, "on GPUs models have " + std::to_string(kMostNetTypes) +
                                         " types at most: choose some (--elements), or load it for the CPU");
    inputs_ = inputs, parameters[0] = &inputs_.fparam, parameters[1] = &inputs_.aparam;
    nets_.shape = shape, nets_.nets = count;
    nets_.inputs = static_cast<int>(others_.width() + inputs.width());
    nets_.scale = scale_.copy(scale.data(), scale.size(), stream);
    nets_.shift = shift_.copy(shift.data(), shift.size(), stream);
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

  // To weights, the same transposed where products need that, biases and timesteps.
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
  GpuOthers<T> others_;
  ExtraInputs<T> inputs_;
  TypeNets<T> nets_{};
  std::vector<GpuArray<T>> numbers_;
  GpuArray<double> scale_, shift_;

  // Of the last call: memory.
  GpuArray<T> given_, x_, grad_;
  GpuArray<char> order_;
};

// Of a member of the model that is no table.
std::unique_ptr<GpuPart> standard_part(const GpuBase& of, const File& file, const Json& about,
                                       const std::string& prefix, const Request& request, int32_t ntypes) {
  if (request.precision == "float64")
    return std::make_unique<GpuRowsPart<double>>(of, file, about, prefix, request, ntypes);
  const std::vector<Json>& adds = about.at("residual").as_list();
  if (about.at("descriptors").as_list().empty() && !adds.empty() && adds[0].as_bool())
    return std::make_unique<GpuRowsPart<float>>(of, file, about, prefix, request, ntypes);
  return std::make_unique<GpuStandardPart>(of, file, about, prefix, request, ntypes);
}

// A pair table, alone or as what a blend has near atoms.
class GpuTablePart : public GpuPart {
 public:
  GpuTablePart(const GpuBase& of, const File& file, const Json& about, const std::string& prefix,
               const Request& request, int32_t ntypes)
      : GpuPart(of), ntypes_(ntypes) {
    const TableData own(file, about, prefix, ntypes);
    const cudaStream_t stream = base_.stream();
    table_ = own.table;
    table_.pair_mask = mask_.copy(own.mask.get(), int64_t{ntypes} * ntypes, stream);
    table_.coefficients = coefficients_.copy(own.coefficients.data(), own.coefficients.size(), stream);
    bias_.copy(own.bias.data(), own.bias.size(), stream);
    judge_.set(request.extends ? std::vector<Limit>() : own.limits, stream);
  }

  double cutoff() const { return table_.cutoff; }

  void run(const GpuCall& call, const double* weight, bool of_atoms, PartAnswer& answer) override {
    blend(call, weight, nullptr, NearArgs{}, of_atoms, answer);
  }

  // The same with energies of another model, whose part of the weights' slopes this has; or null.
  void blend(const GpuCall& call, const double* weight, const double* other, const NearArgs& near,
             bool of_atoms, PartAnswer& answer) {
    const Gpu gpu = base_.of("compute");
    const ListArgs list = list_of(call, ntypes_);
    double* const bare = other ? other_.resize(call.all) : nullptr;
    const int64_t blocks = blocks_for(call.all, kThreads);
    if (other)
      gpu.launch(shift_kernel, blocks, kThreads, 0, other, list.types, bias_.data(), -1.0, call.all, bare);
    double* const of = of_atoms && call.all ? answer.atom_virial.data() : nullptr;
    const GpuTableResults out{answer.energy.data(),      answer.forces.data(),
                              answer.virial.data(),      of,
                              nearest_.resize(call.all), within_.resize(call.all * ntypes_)};
    run_table(gpu, list, table_, {weight, bare, other != nullptr, near}, out,
              answer.memory.resize(table_bytes(list, of)));
    gpu.launch(shift_kernel, blocks, kThreads, 0, answer.energy.data(), list.types, bias_.data(), 1.0,
               call.all, answer.energy.data());
  }

  void ask(const GpuCall& call, double closest) override {
    const double* const nearest = is_told_ ? told_nearest_.data() : nearest_.data();
    const int32_t* const within = is_told_ ? told_within_.data() : within_.data();
    judge_.ask(base_.of("compute"), Judged<double>{nullptr, nearest, within, ntypes_, table_.cutoff, closest},
               call.centers);
  }

  // A blend's neighbours are those of `near`, of all atoms, and not only of those that the table counts for.
  void look(const GpuCall& call, const NearArgs& near, double* weights) {
    is_told_ = true;
    run_near(base_.of("compute"), list_of(call, ntypes_), near, weights,
             told_within_.resize(call.all * ntypes_), told_nearest_.resize(call.all));
  }

 private:
  const int ntypes_;
  TableArgs table_{};
  GpuArray<bool> mask_;
  bool is_told_ = false;
  GpuArray<double> coefficients_, bias_, other_, nearest_, told_nearest_;
  GpuArray<int32_t> within_, told_within_;
};

class ComposedGpuModel : public GpuBase {
 public:
  ComposedGpuModel(const File& file, const Json& about, const Request& request)
      : GpuBase(about, request), whole_(data_of(file, about, request)) {
    const OnGpu here(index_);
    cutoff_ = whole_.cutoff, shortest_ = whole_.shortest;
    on_device([&] {
      if (is_alone(about)) {
        parts_.push_back(std::make_unique<GpuRowsPart<double>>(*this, file, about, request, ntypes()));
        takes(*parts_[0]->parameters[0], *parts_[0]->parameters[1]);
        return put_there();
      }
      const std::vector<Json>& members = about.at("members").as_list();
      std::vector<const Parameters*> parameters[2];
      for (size_t m = 0; m < members.size(); ++m) {
        const std::string prefix = "core." + std::to_string(m) + ".";
        if (members[m].at("is_table").as_bool())
          parts_.push_back(
              std::make_unique<GpuTablePart>(*this, file, members[m], prefix, request, ntypes()));
        else
          parts_.push_back(standard_part(*this, file, members[m], prefix, request, ntypes()));
        for (int k = 0; k < 2; ++k) parameters[k].push_back(parts_[m]->parameters[k]);
      }
      takes(common_parameters(parameters[0]), common_parameters(parameters[1]));
      if (whole_.blends) table_ = static_cast<GpuTablePart*>(parts_[1].get());
      put_there();
    });
  }

 protected:
  void evaluate(const GpuCall& call, mdops_output& output) override {
    const int64_t all = call.all;
    const bool of_atoms = output.atom_virial;
    const Gpu gpu = of("compute");
    answer_.resize(all, of_atoms);
    gpu.clear(energy_.resize(all), 8 * all), gpu.clear(forces_.resize(3 * all), 24 * all);
    gpu.clear(virial_.resize(9), 72);
    if (of_atoms) gpu.clear(atom_virial_.resize(9 * all), 72 * all);
    launch(counted_kernel, all, call.types, has_energy_.data(), all, counted_.resize(all));
    if (whole_.blends)
      blend(call, of_atoms);
    else
      sum(call, of_atoms);
    launch(finish_kernel, all, call.types, has_energy_.data(), bias_.data(), all, energy_.data());
    total_.ask(gpu, Judged<double>{energy_.data(), nullptr, nullptr, 0, cutoff_, 0}, call.centers);
    bring(call, {energy_.data(), forces_.data(), virial_.data(), atom_virial_.data()}, output);
    conclude(output);
  }

 private:
  // A file with one descriptor of sums has no members.
  static bool is_alone(const Json& about) { return about.at("version").as_integer() == 1; }
  ComposedData data_of(const File& file, const Json& about, const Request& request) const {
    if (!is_alone(about)) return ComposedData(file, about, request.precision, ntypes());
    return ComposedData(positive(about, "cutoff"),
                        about.at("grids").at(request.precision).at("r_min").as_number(), ntypes());
  }

  void put_there() {
    has_energy_.copy(whole_.has_energy.data(), whole_.has_energy.size(), stream());
    bias_.copy(whole_.bias.data(), whole_.bias.size(), stream());
    near_ = whole_.near;
    if (whole_.blends)
      near_.pair_mask = near_mask_.copy(whole_.near_mask.get(), int64_t{ntypes()} * ntypes(), stream());
    check_cuda(cudaStreamSynchronize(stream()));
  }

  template <class... Parameters, class... Args>
  void launch(void (*kernel)(Parameters...), int64_t count, const Args&... args) const {
    launch_numbers(of("compute"), kernel, count, args...);
  }

  // The atoms' weights; null: 1.
  const double* weights() const { return whole_.all_have_energy ? nullptr : counted_.data(); }

  void add(const GpuCall& call, double factor, bool of_atoms) {
    launch(add_kernel<double>, 3 * call.all, answer_.forces.data(), factor, 3 * call.all, forces_.data());
    launch(add_kernel<double>, 9, answer_.virial.data(), factor, 9, virial_.data());
    if (of_atoms)
      launch(add_kernel<double>, 9 * call.all, answer_.atom_virial.data(), factor, 9 * call.all,
             atom_virial_.data());
  }

  void sum(const GpuCall& call, bool of_atoms) {
    for (size_t m = 0; m < parts_.size(); ++m) {
      parts_[m]->run(call, weights(), of_atoms, answer_);
      launch(add_kernel<double>, call.all, answer_.energy.data(), whole_.factors[m], call.all,
             energy_.data());
      add(call, whole_.factors[m], of_atoms);
      parts_[m]->ask(call, whole_.closest);
    }
  }

  // The first model far from other atoms, the table near them.
  void blend(const GpuCall& call, bool of_atoms) {
    const int64_t all = call.all;
    double *const near = near_weight_.resize(all), *const far = far_.resize(all);
    double *const of_table = of_table_.resize(all), *const far_energy = far_energy_.resize(all);
    table_->look(call, near_, near);
    if (table_->cutoff() != near_.cutoff) {  // the table reports of the atoms that it looks at
      NearArgs reach = near_;
      reach.cutoff = table_->cutoff();
      table_->look(call, reach, far);
    }
    table_->ask(call, whole_.closest);
    launch(blend_weights_kernel, all, near, counted_.data(), all, far, of_table);
    parts_[0]->run(call, far, of_atoms, answer_);
    add(call, 1, of_atoms);
    parts_[0]->ask(call, whole_.closest);
    check_cuda(cudaMemcpyAsync(far_energy, answer_.energy.data(), 8 * all, cudaMemcpyDefault, stream()));
    table_->blend(call, of_table, far_energy, near_, of_atoms, answer_);
    add(call, 1, of_atoms);
    launch(blend_kernel, all, near, far_energy, answer_.energy.data(), all, energy_.data());
  }

  // What the judges found.
  void conclude(mdops_output& output) const {
    std::vector<const Judge*> judges;
    for (const auto& part : parts_)
      for (const Judge* const judge : part->judges()) judges.push_back(judge);
    Verdict all = total_.verdict();
    for (const Judge* const judge : judges) {
      Verdict found = judge->verdict();
      found.energy = 0;
      join(all, found);
    }
    output.energy = all.energy, output.nearest = all.nearest;
    if (all.same != kNone) refuse_place(all.same, output);
    for (const Judge* const judge : judges) {
      const Verdict found = judge->verdict();
      if (found.close != kNone)
        refuse_close(found.close, judge->nearest(found.close, stream()), whole_.closest, output);
    }
    for (const Judge* const judge : judges) {
      const Verdict found = judge->verdict();
      if (found.crowded != kNone) refuse_first(*judge, found.crowded, output);
    }
  }

  const ComposedData whole_;
  std::vector<std::unique_ptr<GpuPart>> parts_;
  GpuTablePart* table_ = nullptr;  // of a blend
  NearArgs near_{};
  GpuArray<uint8_t> has_energy_;
  GpuArray<double> bias_;
  GpuArray<bool> near_mask_;

  // Of the last call: memory.
  PartAnswer answer_;
  Judge total_;
  GpuArray<double> energy_, forces_, virial_, atom_virial_, counted_, near_weight_, far_, of_table_,
      far_energy_;
};

}  // namespace

std::unique_ptr<Model> composed_gpu_model(const File& file, const Json& about, const Request& request) {
  return std::make_unique<ComposedGpuModel>(file, about, request);
}

}  // namespace mdops::core
