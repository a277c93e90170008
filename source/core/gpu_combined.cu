// Models of several descriptors, of several models, and of pair tables, on a GPU: each part by its kernels,
// over one list, one after the other in one stream.
#include <memory>
#include <string>
#include <vector>

#include "core/combined_data.h"
#include "core/gpu_numbers.h"
#include "core/gpu_parts.h"
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

// The weights of a blend's parts.
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

// A table gives NaN to atoms that are too near; only those keep it.
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

// A pair table, alone or for near atoms in a blend.
class GpuTablePart : public GpuPart {
 public:
  GpuTablePart(const GpuBase& of, const File& file, const Json& about, const std::string& prefix,
               const Request& request, int32_t ntypes)
      : GpuPart(of), ntypes_(ntypes) {
    const TableData own(file, about, prefix, ntypes);
    const cudaStream_t stream = base_.stream();
    table_ = own.table;
    table_.pair_mask = mask_.copy(own.mask.get(), int64_t{ntypes} * ntypes, stream);
    table_.coefficients = coefficients_.copy(own.coefficients, stream);
    bias_.copy(own.bias, stream);
    checker_.set(request.extends ? std::vector<Limit>() : own.limits, stream);
  }

  double cutoff() const { return table_.cutoff; }

  void run(const GpuCall& call, const double* weight, bool of_atoms, PartAnswer& answer) override {
    blend(call, weight, nullptr, NearArgs{}, of_atoms, answer);
  }

  // The same with another model's energies (or null), for this part of the weights' slopes.
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
    checker_.ask(base_.of("compute"),
                 StepCheckInput<double>{nullptr, nearest, within, ntypes_, table_.cutoff, closest},
                 call.centers);
  }

  // A blend's neighbours are those of `near`, of all atoms, not only of those that the table counts for.
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

class CombinedGpuModel : public GpuBase {
 public:
  CombinedGpuModel(const File& file, const Json& about, const Request& request)
      : GpuBase(about, request), whole_(data_of(file, about, request)) {
    const OnGpu here(index_);
    cutoff_ = whole_.cutoff, shortest_ = whole_.shortest;
    on_device([&] {
      if (is_alone(about)) {
        parts_.push_back(make_single_member(*this, file, about, request, ntypes()));
        takes(*parts_[0]->parameters[0], *parts_[0]->parameters[1]);
        return upload();
      }
      const auto make = [&](const Json& member, const std::string& prefix,
                            bool is_table) -> std::unique_ptr<GpuPart> {
        if (!is_table) return make_member(*this, file, member, prefix, request, ntypes());
        return std::make_unique<GpuTablePart>(*this, file, member, prefix, request, ntypes());
      };
      const auto [fparam, aparam] = read_members(about, make, parts_);
      takes(*fparam, *aparam);
      if (whole_.blends) table_ = static_cast<GpuTablePart*>(parts_[1].get());
      upload();
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
    total_.ask(gpu, StepCheckInput<double>{energy_.data(), nullptr, nullptr, 0, cutoff_, 0}, call.centers);
    bring(call, {energy_.data(), forces_.data(), virial_.data(), atom_virial_.data()}, output);
    conclude(output);
  }

 private:
  // A file with one descriptor of sums has no members.
  static bool is_alone(const Json& about) { return !about.find("members"); }
  CombinedData data_of(const File& file, const Json& about, const Request& request) const {
    if (!is_alone(about)) return CombinedData(file, about, request.precision, ntypes());
    return CombinedData(positive(about, "cutoff"),
                        about.at("grids").at(request.precision).at("r_min").as_number(), ntypes());
  }

  void upload() {
    has_energy_.copy(whole_.has_energy, stream());
    bias_.copy(whole_.bias, stream());
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
    if (table_->cutoff() != near_.cutoff) {  // the table reports on the atoms that it reads
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

  // What the checkers found.
  void conclude(mdops_output& output) const {
    std::vector<const StepChecker*> checkers;
    for (const auto& part : parts_)
      for (const StepChecker* const checker : part->checkers()) checkers.push_back(checker);
    StepCheck all = total_.verdict();
    for (const StepChecker* const checker : checkers) {
      StepCheck found = checker->verdict();
      found.energy = 0;
      join(all, found);
    }
    output.energy = all.energy, output.nearest = all.nearest;
    if (all.same != kNone) refuse_place(all.same, output);
    for (const StepChecker* const checker : checkers) {
      const StepCheck found = checker->verdict();
      if (found.close != kNone)
        refuse_close(found.close, checker->nearest(found.close, stream()), whole_.closest, output);
    }
    for (const StepChecker* const checker : checkers) {
      const StepCheck found = checker->verdict();
      if (found.crowded != kNone) refuse_first(*checker, found.crowded, output);
    }
  }

  const CombinedData whole_;
  std::vector<std::unique_ptr<GpuPart>> parts_;
  GpuTablePart* table_ = nullptr;  // of a blend
  NearArgs near_{};
  GpuArray<uint8_t> has_energy_;
  GpuArray<double> bias_;
  GpuArray<bool> near_mask_;

  // Of the last call: memory.
  PartAnswer answer_;
  StepChecker total_;
  GpuArray<double> energy_, forces_, virial_, atom_virial_, counted_, near_weight_, far_, of_table_,
      far_energy_;
};

}  // namespace

std::unique_ptr<Model> combined_gpu_model(const File& file, const Json& about, const Request& request) {
  return std::make_unique<CombinedGpuModel>(file, about, request);
}

}  // namespace mdops::core
