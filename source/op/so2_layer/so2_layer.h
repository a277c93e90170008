// A layer equivariant under rotations about an edge's axis. An edge has rows of C channels: L + 1 of m = 0
// (degrees l = 0 .. L), then L of m = -1 and L of m = 1 (l = 1 .. L), side by side x_0, x_-, x_+:
//
//   z_0 = x_0 W   z_- = x_- U - x_+ V   z_+ = x_- V + x_+ U      W ((L + 1) C, (L + 1) C), U, V (L C, L C)
//   f_0 = sigmoid(s)   f_l = sigmoid(s G_l)   s: the first C numbers of z_0      G (C, L C)
//   y = x + f_l z, in the rows of degree l                       without G: y = x + z
//
// Backward, for the gradient g by y; f z = y - x needs no product:
//
//   a_l = (1 - f_l) sum of g (y - x) over the rows of degree l
//   dz = f_l g, plus a_0 + sum_l a_l G_l^T in its first C numbers
//   by x   g + [dz_0 W^T,   dz_- U^T + dz_+ V^T,   dz_+ U^T - dz_- V^T]
#pragma once

#include <algorithm>
#include <vector>

#include "common/isa.h"
#include "common/math.h"
#include "edge_rotation/edge_rotation.h"

namespace mdops {

// `gate` is null without a gate. Backward, `grad` and the layer's `result` are given, and y is the gradient
// by x.
template <class T>
struct So2Args {
  int64_t edges, degrees, channels;            // degrees: L
  const T *x, *weight, *both, *gate;           // (E, R, C), W, [U V], G
  const T *grad = nullptr, *result = nullptr;  // (E, R, C)
  T* y;                                        // (E, R, C)
  int parts = 2;       // of numbers on tensor cores: two, to float32's accuracy, or one
  int64_t groups = 1;  // of channels side by side; weights between them are zeros

  MDOPS_HD int64_t middle() const { return (degrees + 1) * channels; }  // numbers of m = 0
  MDOPS_HD int64_t side() const { return degrees * channels; }          // of m = -1, and of m = 1
  MDOPS_HD int64_t row() const { return middle() + 2 * side(); }
};

// Which node each edge belongs to, and the edges of each (graph/rows.h).
struct EdgesOfNodes {
  const int32_t *index, *order, *offsets;
  int64_t nodes;
};

// Messages: the neighbour's rows are rotated into an edge's frame and mixed, go through the layers, are
// rotated back and summed over the edges of each atom (edge_frames.h, edge_rotation.h, order_mix.h):
//
//   x_e = mix(K_e, T_e) x[neighbor]   y_e = layers(x_e)   sum of w_e T_e^T y_e
//
// where T_e is the rotation into the frame of an edge's vector.
//
// Layers contain shapes and weights only. Backward, `grad` is by the sums, and y is an input.
template <class T>
struct So2Messages {
  RotationShape shape;                      // of neighbours
  const T *vectors, *mixture, *x, *weight;  // (E, 3), (E, Q), (N, D, C), (E,)
  EdgesOfNodes of_neighbor, of_center;
  int64_t degree;
  std::vector<So2Args<T>> layers;
  T *y, *sums;              // (K, E, R, C), saved for the backward pass; (M, D, C)
  const T* grad = nullptr;  // (M, D, C)
  T *by_vectors = nullptr, *by_mixture = nullptr, *by_x = nullptr, *by_weight = nullptr;

  RotateArgs<T> rotated(const T* matrices, T* rows) const {
    return {shape, matrices, {x, of_neighbor.index, shape.nodes}, rows};
  }
  NodeRows<T> grads() const { return {grad, of_center.index, of_center.nodes}; }
  // Whether edges are sorted by atom, and only the last layer has no gate.
  bool may_go_by_nodes() const {
    if (of_center.order || layers.back().gate) return false;
    return std::all_of(layers.begin(), layers.end() - 1, [](const So2Args<T>& one) { return one.gate; });
  }
  RotationShape of_atoms() const {
    return {shape.edges, of_center.nodes, shape.rows, shape.columns, shape.channels};
  }
};

MDOPS_DECLARE_KERNELS(PackedSizes so2_sizes(const So2Args<T>& args))
MDOPS_DECLARE_KERNELS(void so2_pack(const So2Args<T>& args, void* packed))
MDOPS_DECLARE_KERNELS(void so2_rows(const So2Args<T>& args, int64_t from, int64_t to, const void* packed,
                                    void* scratch))

// A last layer without a gate, once per node: from moments (nodes, D, R C) of the layer's rows
// (order_moments.h) to sums (nodes, D, C) of its results, rotated back. If the layer has a `grad`, from
// gradients by sums to those by moments; moments that are always zero are not written.
MDOPS_DECLARE_KERNELS(int64_t so2_end_size(const So2Args<T>& args))
MDOPS_DECLARE_KERNELS(void so2_end_pack(const So2Args<T>& args, void* packed))
MDOPS_DECLARE_KERNELS(void so2_end(const So2Args<T>& args, const T* from, T* to, int64_t nodes,
                                   const void* packed))

}  // namespace mdops
