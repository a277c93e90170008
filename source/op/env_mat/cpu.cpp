#include "env_mat/cpu_loops.h"
#include "env_mat/ops.h"

namespace mdops {

template <class T>
static void run_env_mat(const Op&, const EnvMatArgs<T>& args, T* rows) {
  env_mat_rows(args, rows);
}

template <class T>
static void run_env_mat_gradients(const Op&, const EnvMatArgs<T>& args, const T* grad, T* out) {
  env_mat_gradients(args, grad, out);
}

template <class T>
static void run_env_mat_seconds(const Op&, const EnvMatArgs<T>& args, const T* tangent, const T* grad,
                                T* grad_grad, T* grad_d) {
  env_mat_second(args, tangent, grad, grad_grad, grad_d);
}

}  // namespace mdops

MDOPS_ON_CPU(EnvMatOps)
