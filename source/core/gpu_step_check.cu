#include "core/gpu_step_check.h"

namespace mdops::core {

namespace {

constexpr int kCheckThreads = 256;

// Always with kCheckBlocks blocks, to fix the order of the sum.
template <class T>
__global__ void __launch_bounds__(kCheckThreads)
    check_kernel(StepCheckInput<T> p, const Limit* limits, int limit_count, int centers,
                 StepCheck* verdicts) {
  __shared__ StepCheck shared[kCheckThreads];
  StepCheck own{0, p.cutoff, kNone, kNone, kNone};
  for (int i = blockIdx.x * kCheckThreads + threadIdx.x; i < centers; i += kCheckBlocks * kCheckThreads) {
    StepCheck atom{p.energy ? p.energy[i] : 0, p.cutoff, kNone, kNone, kNone};
    if (p.nearest) {
      atom.nearest = static_cast<double>(p.nearest[i]);
      if (atom.nearest == 0) atom.same = i;
      if (atom.nearest < p.closest) atom.close = i;
    }
    for (int k = 0; k < limit_count; ++k) {
      const int32_t* const from = p.within + static_cast<int64_t>(i) * p.counts + limits[k].first;
      int64_t n = 0;
      for (int t = 0; t < limits[k].count; ++t) n += from[t];
      if (n > limits[k].places) atom.crowded = i;
    }
    join(own, atom);
  }
  shared[threadIdx.x] = own;
  for (int half = kCheckThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) join(shared[threadIdx.x], shared[threadIdx.x + half]);
  }
  if (threadIdx.x == 0) verdicts[blockIdx.x] = shared[0];
}

}  // namespace

template <class T>
void launch_check(const Gpu& gpu, const StepCheckInput<T>& of, const Limit* limits, int64_t limit_count,
                  int64_t centers, StepCheck* verdicts) {
  gpu.launch(check_kernel<T>, kCheckBlocks, kCheckThreads, 0, of, limits, limit_count, centers, verdicts);
}

template void launch_check(const Gpu&, const StepCheckInput<float>&, const Limit*, int64_t, int64_t,
                           StepCheck*);
template void launch_check(const Gpu&, const StepCheckInput<double>&, const Limit*, int64_t, int64_t,
                           StepCheck*);

}  // namespace mdops::core
