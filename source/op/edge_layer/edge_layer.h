// A layer of DPA-2 on the numbers e (E, C) of the edges of an atom, in one forward and one backward pass:
//
//   y = keep e + s f(e A + a) + t (n norm(sum_h o_h V_h + b) + m)
//
// o_h are the sums of `edge_attention` with q_h = e Q_h, x = e, r and w: Q_h are the matrices of queries
// times those of keys, V_h those of values times the output rows of the heads. Without heads there is no last
// term. Gradients are by e, r and w; the weights are constants.
#pragma once

#include "common/activation.h"
#include "common/isa.h"

namespace mdops {

template <class T>
struct EdgeLayerArgs {
  int64_t rows, width, heads, atoms;  // E, C, H, N
  bool gated;
  T shift, eps, keep;
  Activation activation;
  T threshold;
  const int32_t* offsets;                                                     // (N + 1,)
  const T *e, *r, *w, *absent;                                                // (E, C), (E, 3), (E,), (N,)
  const T *own, *queries, *values;                                            // A (C, C), Q, V (H, C, C)
  const T *own_bias, *own_factor, *out_bias, *norm, *norm_bias, *out_factor;  // a, s, b, n, m, t, (C,)
  const T* grad = nullptr;                                                    // by y, or null
  T* saved = nullptr;                                                         // (E, C), input of the norm
  T *out = nullptr, *by_r = nullptr, *by_w = nullptr;                         // y, or the gradient by e
};

// For atoms with n edges at most.
MDOPS_DECLARE_KERNELS(PackedSizes edge_layer_sizes(const EdgeLayerArgs<T>& args, int64_t n))
MDOPS_DECLARE_KERNELS(void edge_layer_pack(const EdgeLayerArgs<T>& args, void* packed))
// Atoms [from, to).
MDOPS_DECLARE_KERNELS(void edge_layer_atoms(const EdgeLayerArgs<T>& args, int64_t from, int64_t to,
                                            const void* packed, void* scratch))

}  // namespace mdops
