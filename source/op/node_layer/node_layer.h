// A layer of DPA-2's update of the nodes n (N, C), from the sums over their edges:
//
//   y = keep n + s f(n A + a) + t v + u f([n, D(E), D(V)] B + b),   D(T)_lk = sum_a T_al T_ak, l < axis
//
// v (N, C) is the convolution, E (N, 3, K) the sums of edges times vectors, V (N, 3, C) those of neighbours;
// v is the first of the rows of V (N, 1 + 3, C). Any term and any input of the last product may be missing.
// The gradients are by n, E, and v and V together; the weights are constants.
#pragma once

#include "common/activation.h"
#include "common/isa.h"

namespace mdops {

template <class T>
struct NodeLayerArgs {
  int64_t rows, width, edge_width, sums, axis,
      inputs;        // N, C, K, rows of v and V (0, 1 or 4), columns of B^T
  bool takes_nodes;  // whether n are inputs of the last product
  T keep;
  Activation activation;
  T threshold;
  const T *n, *v, *e;                                  // (N, C), (N, sums, C), (N, 3, K)
  const T *own, *own_bias, *own_factor;                // A, a, s, or null
  const T* sum_factor;                                 // t, or null
  const T *every, *bias, *factor;                      // B (inputs, C), b, u
  T *z, *z_own;                                        // (N, C), what f is taken of
  const T* grad = nullptr;                             // by y, or null
  T *out = nullptr, *by_v = nullptr, *by_e = nullptr;  // y, or the gradient by n
};

MDOPS_DECLARE_KERNELS(PackedSizes node_layer_sizes(const NodeLayerArgs<T>& args))
MDOPS_DECLARE_KERNELS(void node_layer_pack(const NodeLayerArgs<T>& args, void* packed))
// The nodes [from, to).
MDOPS_DECLARE_KERNELS(void node_layer_rows(const NodeLayerArgs<T>& args, int64_t from, int64_t to,
                                           const void* packed, void* scratch))

}  // namespace mdops
