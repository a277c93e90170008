// A whole step of several descriptors on the CPU: the work of threads, and the sums over them. Without
// PyTorch.
#pragma once

#include "hybrid_potential/shape.h"
#include "spline_potential/cpu_loops.h"

namespace mdops {

// Computes further inputs of the nets in the step, a few atoms of one net at a time, and the forces from
// their gradient.
template <class T>
class ComputedInputs {
 public:
  static constexpr int64_t kAtoms = 32;  // at most
  virtual ~ComputedInputs() = default;
  virtual void begin(int64_t threads) = 0;
  // Puts them into args.extra.
  virtual void forward(int64_t thread, const int32_t* ids, int64_t count) = 0;
  // From grad_extra to a thread's sums.
  virtual void backward(int64_t thread, const int32_t* ids, int64_t count, PotentialResults<T>& sums) = 0;
};

// The step, with nets one after the other; `within`, `grad_extra` and `near_weight` as in HybridResults, zero
// for virtual atoms at entry. With `computed` there may be no part: then args.first() has what does not
// belong to a descriptor.
template <class T>
void hybrid_step(const Op& op, const HybridArgs<T>& args, const T* nets, const StepResults<T>& results,
                 int32_t* within, T* grad_extra, ComputedInputs<T>* computed = nullptr,
                 double* near_weight = nullptr);

}  // namespace mdops
