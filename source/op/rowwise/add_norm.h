// LayerNorm of the sum of two tensors of rows, h = x + y (N, M), or of h = x, with both derivatives. With < >
// the mean over a row's columns, r = (<(h - <h>)^2> + eps)^-1/2 and n = r (h - <h>):
//
//   out = w n + b
//   of <G, out>:      by h   r J(w G),   J(z) = z - <z> - n <n z>
//                     by w, b   sums over rows of n G, of G
//   of <P, by h> + <p, by w> + <q, by b>, with a = w G and z = p G:
//                     by G   w r J(P) + p n + q
//                     by h   -r^2 ((<P a> - <P> <a> - <n P> <n a>) n + <n a> J(P) + <n P> J(a)) + r J(z)
//                     by w   sum over rows of r G J(P)
#pragma once

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

// Null pointers: not wanted, or they belong to a later pass.
template <class T>
struct AddNormArgs {
  int64_t rows, width;
  T eps;
  const T *x, *y, *weight, *bias;                         // there may be no y
  const T *grad, *direction, *along_weight, *along_bias;  // G; P, p and q
  // The forward pass: (N, M). The backward pass: by h. The second one: by h and by G.
  T *out, *by_grad;
  // For runs of rows, their parts of the gradients, (runs, sums, M): by w and b in the backward pass, by w in
  // the second one. Without rows, null pointers do not tell the passes apart.
  int sums;
  T* partial;
};

// Means of a row for J, of z and of n z.
template <class T>
struct NormMeans {
  T z, n_z;

  MDOPS_HD T j(T number, T n) const { return number - z - n * n_z; }
};

// The results of a row's columns, from its means.
template <class T>
struct NormRow {
  T mean, r;
  NormMeans<T> a, p, z;
  T p_a;

  MDOPS_HD T n(T h) const { return r * (h - mean); }
  MDOPS_HD T by_h(T of_a, T n) const { return r * a.j(of_a, n); }
  // r J(P), and the gradient by G with it.
  MDOPS_HD T along(T of_p, T n) const { return r * p.j(of_p, n); }
  static MDOPS_HD T by_grad(T along, T n, T weight, T along_weight, T along_bias) {
    return weight * along + along_weight * n + along_bias;
  }
  MDOPS_HD T second_by_h(T of_p, T of_a, T of_z, T n) const {
    const T along = p_a - p.z * a.z - p.n_z * a.n_z;
    return r * z.j(of_z, n) - r * r * (along * n + a.n_z * p.j(of_p, n) + p.n_z * a.j(of_a, n));
  }
};

// Rows [from, to), which add their part to run `run` of the sums, if these are wanted: the given arguments
// tell the pass. `memory` has 4 times `width` numbers.
MDOPS_DECLARE_KERNELS(void add_norm_rows(const AddNormArgs<T>& args, int64_t from, int64_t to, int64_t run,
                                         T* memory))

}  // namespace mdops
