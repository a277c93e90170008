#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/list.h"
#include "core/model.h"
#include "core/threads.h"
#include "core/weights.h"
#include "spline_potential/cpu_loops.h"
#include "spline_potential/cpu_nets.h"

namespace mdops::core {

namespace {

template <class T>
class CpuModel : public Model {
 public:
  CpuModel(const File& file, const Json& about, const Request& request)
      : Model(about, request), sums_(file, about, "core.", request.precision, ntypes()) {
    cutoff_ = sums_.cutoff, shortest_ = sums_.shortest;
    extra_inputs_.read(file, about, "core.", ntypes());
    takes(extra_inputs_.fparam, extra_inputs_.aparam);
    const FittingNets<T> nets(file, about, "core.", sums_, extra_inputs_.width());
    sums_.set(args_);
    args_.net = nets.shape, args_.nets = nets.count;
    net_size_ = PackedNet(args_.net, 0).size;
    nets_.resize(nets.count * net_size_);
    for (int k = 0; k < nets.count; ++k) pack(args_.net, 0, nets.layers(k), nets_.data() + k * net_size_);
    scale_ = nets.scale, shift_ = nets.shift;
    args_.scale = scale_.data(), args_.shift = shift_.data();
    set_threads(request.threads);
  }

  void set_threads(int threads) override {
    const std::lock_guard<std::mutex> lock(guard_);
    set_pool(threads, pool_);
  }

  mdops_info info() const override {
    const std::lock_guard<std::mutex> lock(guard_);
    mdops_info info = Model::info();
    info.precision = sizeof(T) == sizeof(float) ? MDOPS_FLOAT32 : MDOPS_FLOAT64;
    info.threads = pool_->size();
    return info;
  }

  void search(const mdops_input& input, double skin, mdops_list& list) override {
    const std::lock_guard<std::mutex> lock(guard_);
    const UsePool threads(*pool_);
    check_atoms(input);
    list.search(input, cutoff_ + skin, ntypes());
  }

  void compute(const mdops_input& input, mdops_output& output) override {
    const std::lock_guard<std::mutex> lock(guard_);
    const UsePool threads(*pool_);
    output.atom = -1;
    check(input);
    const mdops_list* const list = input.list;
    if (list) list->check_on(-1);
    const int64_t centers = input.atoms, all = input.atoms + input.ghosts;
    systems_.assign(all, 0);
    const Box box(input);
    if (!list) rows_.search(input, box, cutoff_, ntypes());
    const Rows& rows = list ? list->rows : rows_;
    const std::vector<double> places = four_columns(input.positions, all);
    const int32_t* const types = list ? list->types.data() : input.types;
    extra_inputs_.fill(input.fparam, input.aparam, types, centers, extra_);

    PotentialArgs<T> args = args_;
    args.positions = places.data();
    args.cell = box.cell;
    args.batch = systems_.data();
    args.types = types;
    args.neighbors = rows.neighbors.data();
    args.images = rows.images.data();
    args.counts = rows.counts.data();
    args.places.padding = sums_.mixed ? systems_.data() : nullptr;  // of type 0, as mean is zero
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
    judge(output);
    output.energy = 0;
    for (int64_t i = 0; i < centers; ++i) output.energy += energy_[i];
    if (output.atom_energy) std::copy(energy_.begin(), energy_.end(), output.atom_energy);
  }

 private:
  // Sets `nearest`; refuses atoms at one place and, unless told otherwise, more neighbours than places.
  void judge(mdops_output& output) const {
    double nearest = cutoff_;
    bool is_number = true;
    for (int64_t i = 0; i < static_cast<int64_t>(nearest_.size()); ++i) {
      const double own = static_cast<double>(nearest_[i]);
      is_number &= own == own;
      nearest = std::min(nearest, own);
      if (own == 0) refuse_place(i, output);
      if (!extends_) check_places(i, output);
    }
    output.nearest = is_number ? nearest : std::numeric_limits<double>::quiet_NaN();
  }

  void check_places(int64_t i, mdops_output& output) const {
    int64_t all = 0;
    for (int t = 0; t < sums_.ntypes; ++t) {
      const int64_t n = within_[i * sums_.ntypes + t];
      all += n;
      if (!sums_.mixed && n > sums_.sel[t]) refuse_crowd(i, t, n, sums_.sel[t], output);
    }
    if (sums_.mixed && all > sums_.sel[0]) refuse_crowd(i, -1, all, sums_.sel[0], output);
  }

  std::unique_ptr<Pool> pool_;
  const Sums<T> sums_;
  ExtraInputs<T> extra_inputs_;
  int64_t net_size_ = 0;
  Lines<T> nets_;
  std::vector<double> scale_, shift_;
  PotentialArgs<T> args_{};  // what of them is the model's

  // Of the last call: memory.
  Rows rows_;
  std::vector<int32_t> systems_, within_;
  std::vector<T> extra_, nearest_;
  std::vector<double> energy_, forces_;
};

}  // namespace

std::unique_ptr<Model> cpu_model(const File& file, const Json& about, const Request& request) {
  if (request.precision == "float64") return std::make_unique<CpuModel<double>>(file, about, request);
  return std::make_unique<CpuModel<float>>(file, about, request);
}

}  // namespace mdops::core
