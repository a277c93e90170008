// Products of two functions on points, from coefficients to coefficients, without storing values at the
// points:
//
//   y[n, d, c] = sum_g out[g, d] (sum_e a[g, e] u[n, e, c]) (sum_e b[g, e] v[n, e, c])
//
// It is linear in u and in v, and its gradients are such products, too: by u with matrices (out, b, a) of the
// gradient and v, by v with (a, out, b) of u and the gradient.
//
// `by_angles`: the points are rotations by three angles each, with evenly spaced ones about z (angles.h). It
// is used if a kernel supports these numbers of points and coefficients.
#pragma once

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

template <class T>
struct GridArgs {
  int64_t points, first, second, results;  // G, and the columns of a, b and out
  int64_t atoms, channels;                 // N, C
  const T *a, *b, *out, *u, *v;
  T* y;
  bool by_angles = false;
};

MDOPS_DECLARE_KERNELS(PackedSizes grid_sizes(const GridArgs<T>& args))
MDOPS_DECLARE_KERNELS(void grid_pack(const GridArgs<T>& args, void* packed))
MDOPS_DECLARE_KERNELS(void grid_atoms(const GridArgs<T>& args, int64_t from, int64_t to, const void* packed,
                                      void* scratch))

}  // namespace mdops
