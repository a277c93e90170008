// What the host checks of a step's results: their energy, and whether the neighbours are in order.
#pragma once

#include <vector>

#include "common/gpu.h"
#include "common/math.h"
#include "core/gpu_memory.h"
#include "core/limits.h"

namespace mdops::core {

// For the atoms of a block of threads.
struct StepCheck {
  double energy, nearest;        // nearest: NaN if any is
  int32_t same, close, crowded;  // the first atom at the place of another, one that is nearer than may be,
                                 // and one with too many neighbours; kNone
};

constexpr int32_t kNone = 0x7fffffff;
constexpr int kCheckBlocks = 64;

// What is checked of (centers,) atoms; null: not this.
template <class T>
struct StepCheckInput {
  const double* energy;
  const T* nearest;
  const int32_t* within;  // (centers, counts)
  int counts;
  double cutoff, closest;  // A
};

MDOPS_HD void join(StepCheck& to, const StepCheck& other) {
  to.energy += other.energy;
  if (!(other.nearest >= to.nearest) && to.nearest == to.nearest) to.nearest = other.nearest;
  to.same = other.same < to.same ? other.same : to.same;
  to.close = other.close < to.close ? other.close : to.close;
  to.crowded = other.crowded < to.crowded ? other.crowded : to.crowded;
}

// Checks `centers` atoms by the limits: kCheckBlocks verdicts.
template <class T>
void launch_check(const Gpu& gpu, const StepCheckInput<T>& of, const Limit* limits, int64_t limit_count,
                  int64_t centers, StepCheck* verdicts);

// Checks the atoms of a descriptor, of a model, or of a table.
class StepChecker {
 public:
  // Sets its places; none if all neighbours count.
  void set(std::vector<Limit> limits, cudaStream_t stream) {
    limits_ = std::move(limits);
    there_.copy(limits_.data(), static_cast<int64_t>(limits_.size()), stream);
    check_cuda(cudaStreamSynchronize(stream));
  }

  template <class T>
  void ask(const Gpu& gpu, const StepCheckInput<T>& of, int64_t centers) {
    within_ = of.within, counts_ = of.counts, cutoff_ = of.cutoff;
    nearest_ = of.nearest, is_double_ = sizeof(T) == 8;
    StepCheck *const found = verdicts_.resize(kCheckBlocks), *const here = here_.resize(kCheckBlocks);
    launch_check(gpu, of, there_.data(), limits_.size(), centers, found);
    check_cuda(
        cudaMemcpyAsync(here, found, kCheckBlocks * sizeof(StepCheck), cudaMemcpyDefault, gpu.stream()));
  }

  // After a wait for the GPU.
  StepCheck verdict() const {
    StepCheck all{0, cutoff_, kNone, kNone, kNone};
    for (int k = 0; k < kCheckBlocks; ++k) join(all, here_.data()[k]);
    return all;
  }

  const std::vector<Limit>& limits() const { return limits_; }
  // The counts of an atom, in GPU memory.
  const int32_t* within(int64_t atom) const { return within_ + atom * counts_; }
  int counts() const { return counts_; }
  // The distance of its nearest neighbour, A.
  double nearest(int64_t atom, cudaStream_t stream) const {
    double whole = 0;
    float half = 0;
    if (is_double_)
      check_cuda(
          cudaMemcpyAsync(&whole, static_cast<const double*>(nearest_) + atom, 8, cudaMemcpyDefault, stream));
    else
      check_cuda(
          cudaMemcpyAsync(&half, static_cast<const float*>(nearest_) + atom, 4, cudaMemcpyDefault, stream));
    check_cuda(cudaStreamSynchronize(stream));
    return is_double_ ? whole : half;
  }

 private:
  std::vector<Limit> limits_;
  GpuArray<Limit> there_;
  GpuArray<StepCheck> verdicts_;
  HostArray<StepCheck> here_;
  const int32_t* within_ = nullptr;
  const void* nearest_ = nullptr;
  bool is_double_ = false;
  int counts_ = 0;
  double cutoff_ = 0;
};

}  // namespace mdops::core
