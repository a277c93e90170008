#include "core/gpu_base.h"

#include <algorithm>

namespace mdops::core {

namespace {

// The default number of threads to copy with: more are no faster.
constexpr int kCopyThreads = 4;

int copy_threads(int threads) {
  return threads ? threads : std::min(default_threads(), kCopyThreads);
}

}  // namespace

GpuBase::GpuBase(const Json& about, const Request& request)
    : Model(about, request), index_(request.gpu), search_(request.gpu, ntypes()) {
  const OnGpu here(index_);
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreate(&stream));
  stream_.reset(stream);
  set_pool(copy_threads(request.threads), pool_);
}

void GpuBase::set_threads(int threads) {
  const std::lock_guard<std::mutex> lock(guard_);
  set_pool(copy_threads(threads), pool_);
}

mdops_info GpuBase::info() const {
  const std::lock_guard<std::mutex> lock(guard_);
  mdops_info info = Model::info();
  info.gpu = index_, info.threads = pool_->size();
  return info;
}

void* GpuBase::allocate(int64_t bytes) const {
  const OnGpu here(index_);
  void* memory = nullptr;
  check_cuda(cudaMallocHost(&memory, bytes));
  return memory;
}

void GpuBase::release(void* memory) const {
  free_on(index_, [&] { cudaFreeHost(memory); });
}

void GpuBase::search(const mdops_input& input, double skin, mdops_list& list) {
  const std::lock_guard<std::mutex> lock(guard_);
  const UsePool threads(*pool_);
  const OnGpu here(index_);
  check_atoms(input);
  if (input.atoms + input.ghosts > 0 && !input.types) throw Error(MDOPS_INVALID, "input: types is null");
  std::unique_ptr<RowsOnGpu> kept = std::move(list.on_gpu[index_]);  // its memory
  list.clear();
  if (!kept) kept = std::make_unique<GpuRows>();
  on_device([&] {
    const int64_t all = input.atoms + input.ghosts;
    const double* const positions = places_.on_gpu(input.positions, 3 * all, positions_, stream());
    search_.run(input, positions, cutoff_ + skin, stream(), static_cast<GpuRows&>(*kept));
  });
  list.on_gpu[index_] = std::move(kept), list.is_here = false;
  list.is_of(input, cutoff_ + skin, ntypes());
}

void GpuBase::compute(const mdops_input& input, mdops_output& output) {
  const std::lock_guard<std::mutex> lock(guard_);
  const UsePool threads(*pool_);
  const OnGpu here(index_);
  output.atom = -1;
  check(input);
  on_device([&] {
    for (Transfer<double>& transfer : back_) transfer.forget();  // left by an error
    const int64_t all = input.atoms + input.ghosts;
    const double* const positions = places_.on_gpu(input.positions, 3 * all, positions_, stream());
    if (!input.list) search_.run(input, positions, cutoff_, stream(), rows_);
    const GpuRows& rows = input.list ? rows_on_gpu(*input.list, index_, stream()) : rows_;
    const double* const cell = cell_.copy(Box(input).cell, 9, stream());
    evaluate({input, input.atoms, all, positions, cell, rows.types.data(), zeros(all), rows}, output);
  });
}

void GpuBase::bring(const GpuCall& call, const GpuAnswers& answers, mdops_output& output) {
  fetch(answers.virial, 9, virial_here_.resize(9));
  if (output.forces) back_[0].back(answers.forces, 3 * call.all, output.forces, stream());
  if (output.atom_energy) back_[1].back(answers.energy, call.centers, output.atom_energy, stream());
  if (output.atom_virial) back_[2].back(answers.atom_virial, 9 * call.all, output.atom_virial, stream());
  check_cuda(cudaStreamSynchronize(stream()));
  for (Transfer<double>& transfer : back_) transfer.finish();
  std::copy_n(virial_here_.data(), 9, output.virial);
}

void GpuBase::set(const GpuCall& call, StepArgs& args) const {
  args.positions = call.positions, args.atoms = static_cast<int>(call.all), args.cell = call.cell;
  args.batch = call.systems, args.systems = 1;
  args.types = call.types;
  args.neighbors = call.rows.neighbors.data(), args.images = call.rows.images.data();
  args.counts = call.rows.counts.data(), args.list_width = static_cast<int>(call.rows.width);
}

// Zeros for all atoms.
const int32_t* GpuBase::zeros(int64_t all) {
  if (all > zeros_size_) {
    zeros_size_ = all + all / 8;
    check_cuda(cudaMemsetAsync(zeros_.resize(zeros_size_), 0, 4 * zeros_size_, stream()));
  }
  return zeros_.data();
}

template <class T>
const T* GpuBase::extra(const GpuCall& call, const ExtraInputs<T>& inputs, GpuArray<T>& to) const {
  const int64_t columns = inputs.width();
  if (!columns) return nullptr;
  std::vector<int32_t> kinds(call.centers);
  const double* const given = inputs.aparam.size() ? call.input.aparam : nullptr;
  std::vector<double> atomic(given ? call.centers * inputs.aparam.size() : 0);
  fetch(call.types, call.centers, kinds.data());
  fetch(given, atomic.size(), atomic.data());
  check_cuda(cudaStreamSynchronize(stream()));
  std::vector<T> here;
  const double* const frame = inputs.fparam.size() ? call.input.fparam : nullptr;
  inputs.fill(frame, atomic.data(), kinds.data(), call.centers, here);
  here.resize(call.all * columns);
  to.copy(here.data(), call.all * columns, stream());
  check_cuda(cudaStreamSynchronize(stream()));  // `here` goes
  return to.data();
}

template const float* GpuBase::extra(const GpuCall&, const ExtraInputs<float>&, GpuArray<float>&) const;
template const double* GpuBase::extra(const GpuCall&, const ExtraInputs<double>&, GpuArray<double>&) const;

void GpuBase::refuse_first(const StepChecker& checker, int64_t atom, mdops_output& output) const {
  std::vector<int32_t> within(checker.counts());
  fetch(checker.within(atom), checker.counts(), within.data());
  check_cuda(cudaStreamSynchronize(stream()));
  check_places(atom, checker.limits(), within.data(), output);
}

GpuDescriptorWeights::GpuDescriptorWeights(const DescriptorWeights<float>& sums, const FittingShape& shape,
                                           StepArgs& args, cudaStream_t stream) {
  const int64_t pairs = int64_t{sums.ntypes} * sums.ntypes;
  sums.set(args);
  args.width = shape.width, args.axis = shape.axis, args.plain = shape.plain;
  args.mean = mean_.copy(sums.mean, stream);
  args.std = std_.copy(sums.std, stream);
  args.tables = tables_.copy(sums.tables, stream);
  args.places.pair_mask = pair_mask_.copy(sums.pair_mask.get(), pairs, stream);
  args.places.zeroed = zeroed_.copy(sums.zeroed.get(), pairs, stream);
  args.places.sel = sel_.copy(sums.sel, stream);
  check_cuda(cudaStreamSynchronize(stream));
}

}  // namespace mdops::core
