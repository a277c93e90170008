// The environment matrix on the CPU, for float and double. Nothing here uses PyTorch.
#pragma once

#include "env_mat/args.h"

namespace mdops {

// R (N, width, columns).
template <class T>
void env_mat_rows(const EnvMatArgs<T>& args, T* out);
// The gradient by the pair vectors (N, width, 3), zero at entry, from that by R.
template <class T>
void env_mat_gradients(const EnvMatArgs<T>& args, const T* grad, T* out);
// Derivatives of `env_mat_gradients` along the tangents (N, width, 3): by the gradient of R and by the pair
// vectors, both zero at entry.
template <class T>
void env_mat_second(const EnvMatArgs<T>& args, const T* tangents, const T* grad, T* by_grad, T* by_vectors);

}  // namespace mdops
