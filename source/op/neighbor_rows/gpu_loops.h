// What the ops on rows of neighbours launch on a GPU, for PyTorch and for callers without PyTorch.
#pragma once

#include "common/gpu.h"
#include "neighbor_rows/neighbor_rows.h"

namespace mdops {

template <class T>
void run_row_list(const Gpu& gpu, const RowListArgs<T>& args, const RowListResults<T>& out);

template <class T>
void run_spline_rows(const Gpu& gpu, const SplineRowsArgs<T>& args, const SplineRows<T>& out);
// Gradients by the pair vectors (N, K, 3).
template <class T>
void run_spline_row_gradients(const Gpu& gpu, const SplineRowsArgs<T>& args,
                              const SplineRows<T, const T*>& grad, T* out);

// With the types of centre and neighbour, (rows, 2).
template <class T>
void run_environment_rows(const Gpu& gpu, const EnvironmentRowsArgs<T>& args, const EnvironmentRows<T>& out,
                          int32_t* types);
// By the pair vectors (N, K, 3); and its second derivatives along v (N, K, 3).
template <class T>
void run_environment_row_gradients(const Gpu& gpu, const EnvironmentRowsArgs<T>& args,
                                   const EnvironmentRows<T, const T*>& grad, T* out);
template <class T>
void run_environment_row_seconds(const Gpu& gpu, const EnvironmentRowsArgs<T>& args, const T* v,
                                 const EnvironmentRows<T, const T*>& grad, const EnvironmentRows<T>& out,
                                 T* by_d);

// All components to a degree (rows, C), the gradient by the pair vectors, and its second derivatives along v
// (N, K, 3): by the gradients, (rows, C), and by the pair vectors.
template <class T>
void run_harmonic_rows(const Gpu& gpu, const EnvironmentRowsArgs<T>& args, int degree, T* out);
template <class T>
void run_harmonic_row_gradients(const Gpu& gpu, const EnvironmentRowsArgs<T>& args, int degree, const T* grad,
                                T* out);
template <class T>
void run_harmonic_row_seconds(const Gpu& gpu, const EnvironmentRowsArgs<T>& args, int degree, const T* v,
                              const T* grad, T* rows, T* by_d);

// (N, C, M); and from its gradient those of the rows.
template <class T>
void run_row_moments(const Gpu& gpu, const RowMomentArgs<T>& args, T* out);
template <class T>
void run_row_moment_gradients(const Gpu& gpu, const RowMomentArgs<T>& args, const T* grad, T* environment,
                              T* g);

}  // namespace mdops
