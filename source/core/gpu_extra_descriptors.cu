#include "core/gpu_extra_descriptors.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/gpu_numbers.h"
#include "displacements/gpu_loops.h"

namespace mdops::core {

namespace {

// 3 x 3 matrices.
__global__ void add_transposed_kernel(const double* from, int64_t count, double* to) {
  const int64_t k = thread_number(), i = k / 9;
  const int row = static_cast<int>(k % 9) / 3, column = static_cast<int>(k % 3);
  if (k < count) to[k] += from[9 * i + 3 * column + row];
}

// By each atom's type; `row_atom` null: the atoms themselves.
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
std::unique_ptr<GpuExtraDescriptor<T>> make_gpu_extra_descriptor(const GpuBase& base, const File& file,
                                                                 const Json& about, const std::string& prefix,
                                                                 const Request& request, int64_t ntypes) {
  if (about.at("is_angles").as_bool()) {
    const AngleData<T> data(file, about, prefix, request.precision, ntypes);
    return gpu_angles(data, base.stream());
  }
  if constexpr (std::is_same_v<T, float>) {
    const AttentionData<T> data(file, about, prefix, request.precision, ntypes);
    return gpu_attention(data, base.stream());
  } else {
    throw Error(MDOPS_UNSUPPORTED,
                "on GPUs layers of attention compute in float32: load it in float32, or for the CPU");
  }
}

// Whether a descriptor's features already are the columns of the nets' input.
template <class T>
bool is_all(const GpuExtraDescriptor<T>& other, const TypeRows* rows, int64_t columns) {
  return other.channels == columns && (!rows || other.in_rows());
}

}  // namespace

template <class T>
GpuExtraDescriptor<T>::GpuExtraDescriptor(const ExtraDescriptorWeights<T>& data, cudaStream_t stream)
    : reach(data.reach), channels(data.channels), constant_count(data.constant_count) {
  constants.copy(data.constants, stream);
}

template <class T>
GpuExtraDescriptors<T>::GpuExtraDescriptors(const GpuBase& of, const File& file, const Json& about,
                                            const std::string& prefix, const Request& request, int32_t ntypes)
    : base_(of), ntypes_(ntypes) {
  const std::vector<Json>& found = extra_descriptors_of(about);
  for (size_t k = 0; k < found.size(); ++k)
    insert(k, make_gpu_extra_descriptor<T>(of, file, found[k], extra_prefix(prefix, k), request, ntypes),
           request.extends);
}

template <class T>
void GpuExtraDescriptors<T>::insert(size_t after, std::unique_ptr<GpuExtraDescriptor<T>> other,
                                    bool extends) {
  auto part = std::make_unique<Part>();
  part->checker.set(extends ? std::vector<Limit>() : other->limits, base_.stream());
  part->other = std::move(other);
  parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(after), std::move(part));
  widest_ = 0;
  for (size_t k = 1; k < parts_.size(); ++k)
    if (parts_[k]->other->reach > reach()) widest_ = k;
}

template <class T>
int64_t GpuExtraDescriptors<T>::width() const {
  int64_t sum = 0;
  for (const auto& part : parts_) sum += part->other->width();
  return sum;
}

template <class T>
int64_t GpuExtraDescriptors<T>::begin(const GpuCall& call) {
  nearest_.resize(call.centers), short_nearest_.resize(call.centers);
  int64_t most = std::max<int64_t>(1, call.centers);
  for (const auto& part : parts_) {
    part->within.resize(call.centers * part->other->counts);
    most = std::min(most, part->other->most_atoms(std::max<int64_t>(1, call.rows.width)));
  }
  return blocks_for(call.centers, std::max<int64_t>(1, blocks_for(call.centers, most)));
}

template <class T>
PairRows GpuExtraDescriptors<T>::pair_rows(const GpuCall& call, int64_t first, int64_t count) const {
  return {
      call.systems, call.rows.neighbors.data() + first * call.rows.width, call.all, call.rows.width, 1, first,
      count};
}

template <class T>
GpuBlock<T> GpuExtraDescriptors<T>::block(const GpuCall& call, int64_t first, int64_t count,
                                          const TypeRows* rows) const {
  GpuBlock<T> found{};
  found.first = first, found.atoms = count, found.width = call.rows.width;
  found.displacements = displacements_.data(), found.counts = call.rows.counts.data() + first * ntypes_;
  found.types = call.types + first, found.ntypes = ntypes_, found.rows = rows, found.zeros = call.systems;
  return found;
}

template <class T>
void GpuExtraDescriptors<T>::forward(const GpuCall& call, int64_t first, int64_t count, const TypeRows* rows,
                                     int64_t columns, T* extra) {
  const Gpu gpu = base_.of("compute");
  displacements_.resize(3 * count * call.rows.width);
  run_displacements(gpu, call.positions, call.cell, pair_rows(call, first, count),
                    call.rows.images.data() + first * call.rows.width, displacements_.data());
  const int64_t all = rows ? rows->rows : count;
  for (size_t k = 0; k < parts_.size(); ++k) {
    Part& part = *parts_[k];
    GpuExtraDescriptor<T>& other = *part.other;
    const int64_t channels = other.channels, constants = all * other.constant_count;
    T* const features = is_all(other, rows, columns) ? extra : features_.resize(all * channels);
    other.forward(gpu, block(call, first, count, rows), features, part.within.data() + first * other.counts,
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
void GpuExtraDescriptors<T>::backward(const GpuCall& call, int64_t first, int64_t count, const TypeRows* rows,
                                      int64_t columns, const T* grad_extra, const PairTotals& to) {
  const Gpu gpu = base_.of("compute");
  const int64_t numbers = 3 * count * call.rows.width, all = rows ? rows->rows : count;
  T* const pairs = pairs_.resize(numbers);
  for (size_t k = 0; k < parts_.size(); ++k) {
    GpuExtraDescriptor<T>& other = *parts_[k]->other;
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
    other.backward(gpu, block(call, first, count, rows), grad, own);
    if (k) launch_numbers(gpu, add_kernel<T>, numbers, own, T(1), numbers, pairs);
    grad_extra += other.width();
  }
  const PairRows from = pair_rows(call, first, count);
  double* const of_atoms = to.of_atoms ? of_atoms_.resize(9 * call.all) : nullptr;
  run_pair_forces(gpu, from, pairs, displacements_.data(),
                  memory_.resize(pair_forces_bytes<T>(gpu, from, of_atoms)), forces_.resize(3 * call.all),
                  virial_.resize(9), of_atoms);
  launch_numbers(gpu, add_kernel<double>, 3 * call.all, forces_.data(), 1.0, 3 * call.all, to.forces);
  launch_numbers(gpu, add_transposed_kernel, 9, virial_.data(), 9, to.virial);
  if (of_atoms) launch_numbers(gpu, add_transposed_kernel, 9 * call.all, of_atoms, 9 * call.all, to.of_atoms);
}

template <class T>
void GpuExtraDescriptors<T>::ask(const GpuCall& call, bool decides, double cutoff, double closest) {
  for (size_t k = 0; k < parts_.size(); ++k) {
    Part& part = *parts_[k];
    const T* const nearest = decides && k == widest_ ? nearest_.data() : nullptr;
    part.checker.ask(
        base_.of("compute"),
        StepCheckInput<T>{nullptr, nearest, part.within.data(), part.other->counts, cutoff, closest},
        call.centers);
  }
}

template <class T>
void GpuExtraDescriptors<T>::checkers(std::vector<const StepChecker*>& to) const {
  for (const auto& part : parts_) to.push_back(&part->checker);
}

MDOPS_INSTANTIATE_CLASSES(GpuExtraDescriptor, GpuExtraDescriptors)

}  // namespace mdops::core
