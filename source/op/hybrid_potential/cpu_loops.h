// A whole step of several descriptors on the CPU: what is done in threads, and the sums over them. Nothing
// here knows PyTorch.
#pragma once

#include "hybrid_potential/shape.h"
#include "spline_potential/cpu_loops.h"

namespace mdops {

// The step, with nets one after the other; `within`, `grad_extra` and `near_weight` as in HybridResults, zero
// for virtual atoms at entry.
template <class T>
void hybrid_step(const Op& op, const HybridArgs<T>& args, const T* nets, const StepResults<T>& results,
                 int32_t* within, T* grad_extra, double* near_weight = nullptr);

}  // namespace mdops
