// DescriptorWeights over neighbours on a GPU in float64, by spline moments.
#include <algorithm>

#include "axis_product/gpu_loops.h"
#include "core/gpu_extra_descriptors.h"
#include "core/gpu_numbers.h"
#include "moment_product/gpu_loops.h"
#include "spline_moment/gpu_loops.h"

namespace mdops::core {

namespace {

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

class GpuMoments : public GpuExtraDescriptor<double> {
 public:
  GpuMoments(const DescriptorWeights<double>& sums, const FittingShape& shape, cudaStream_t stream)
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
    args_.mean = mean_.copy(mean, stream), args_.std = std_.copy(std, stream);
    args_.places = {pair_mask_.copy(sums.pair_mask.get(), pairs, stream),
                    zeroed_.copy(sums.zeroed.get(), pairs, stream), sel_.copy(sums.sel, stream), nullptr,
                    sums.ntypes};
    args_.cutoff = {sums.cutoff, sums.smooth, sums.protection};
    args_.grid = spline_grid<double>(sums.basis - 5, sums.s_max, sums.grading), args_.ntypes = sums.ntypes,
    args_.radial = shape.plain;
    std::vector<double> tables;  // without what pads rows
    const int64_t apart = table_width(width_);
    for (int64_t row = 0; row < sums.ntypes * rows_; ++row)
      tables.insert(tables.end(), sums.tables.data() + row * apart,
                    sums.tables.data() + row * apart + width_);
    tables_.copy(tables, stream);
    check_cuda(cudaStreamSynchronize(stream));  // what was copied goes
  }

  bool in_rows() const override { return true; }

  int64_t most_atoms(int64_t width) const override {
    constexpr int64_t most = 1 << 27;  // numbers of the largest array
    return std::max<int64_t>(1, most / std::max({columns_ * rows_, channels, 3 * width}));
  }

  void forward(const Gpu& gpu, const GpuBlock<double>& block, double* features, int32_t* within,
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

  void backward(const Gpu& gpu, const GpuBlock<double>& block, const double* grad, double* pairs) override {
    const int64_t rows = block.rows->rows, numbers = block.atoms * rows_ * columns_;
    if (columns_ > 1) {
      run_axis_gradients(gpu, axis(rows, grad, by_t_.resize(rows * columns_ * width_)));
      grad = by_t_.data();
    }
    double* const by_moments = by_moments_.resize(numbers);  // stale for virtual atoms, and unread
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
    args.places.padding = mixed_ ? block.zeros : nullptr;  // padding of type 0, if needed
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

}  // namespace

std::unique_ptr<GpuExtraDescriptor<double>> gpu_moments(const DescriptorWeights<double>& sums,
                                                        const FittingShape& shape, cudaStream_t stream) {
  return std::make_unique<GpuMoments>(sums, shape, stream);
}

}  // namespace mdops::core
