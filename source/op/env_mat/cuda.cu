#include "common/cuda.h"
#include "env_mat/gpu_kernels.h"
#include "env_mat/ops.h"

namespace mdops {

using namespace gpu_env_mat;

template <class T>
static void run_env_mat(const CudaOp& op, const EnvMatArgs<T>& args, T* rows) {
  op.launch(env_mat_kernel<T>, blocks_for(args.atoms, kWarps), kWarps * kWarp, 0, args, rows);
}

template <class T>
static void run_env_mat_gradients(const CudaOp& op, const EnvMatArgs<T>& args, const T* grad, T* out) {
  op.launch(env_mat_backward_kernel<T>, blocks_for(args.atoms, kWarps), kWarps * kWarp, 0, args, grad, out);
}

template <class T>
static void run_env_mat_seconds(const CudaOp& op, const EnvMatArgs<T>& args, const T* tangent, const T* grad,
                                T* grad_grad, T* grad_d) {
  op.launch(env_mat_second_kernel<T>, blocks_for(args.atoms, kWarps), kWarps * kWarp, 0, args, tangent, grad,
            grad_grad, grad_d);
}

}  // namespace mdops

MDOPS_ON_GPU(EnvMatOps)
