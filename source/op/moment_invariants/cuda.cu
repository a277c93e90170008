#include "common/cuda.h"
#include "moment_invariants/gpu_run.h"
#include "moment_invariants/ops.h"

namespace mdops {

template <class T>
static void run_invariants(const CudaOp& op, const InvariantArgs<T>& args, T* out) {
  gpu_invariants::run(op, args, out);
}

template <class T>
static void run_invariant_gradients(const CudaOp& op, const InvariantArgs<T>& args, const T* grad,
                                    T* by_scalars, T* by_others) {
  gpu_invariants::run(op, args, grad, by_scalars, by_others);
}

}  // namespace mdops

MDOPS_ON_GPU(InvariantOps)
