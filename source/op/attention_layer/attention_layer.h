// A layer of DPA-1's attention, for simulation: the rows g (E, M) of the neighbours of atom after
// atom to
//
//   norm(g + o W_o + b_o),   o of attention.h with q, k, v = g W + b, of length 1 where `normalize`, and one
//   head
//
// with norm(h)_c = w_c (h_c - mean h) / sqrt(var h + eps) + b_c. What the backward pass needs of an atom is
// kept, and nothing is that is n x n: q, k and v, the normalised h, and a few numbers a row. Its gradients
// are by g, gate and switch alone:
//
//   h: LayerNorm's      o: dh W_o^T      q, k, v: attention.h's, then of x / |x|: (dx - x x.dx) / |x|
//   g: dh + (dq, dk, dv) W^T
//
// q, k and v may stand for vectors of more numbers, as coordinates in orthonormal bases of spaces that these
// do not leave: their lengths are the same, and W_o begins with the basis of v. Then q.k is a sum with
// `factors`, the cosines of the angles between the bases of q and of k. In the first layer the coordinates
// are functions of the distance, as g is: without W they are the last 3 A columns of rows that begin with g,
// and so are the gradients by them. What columns are between, for rows to begin where memory likes it, does
// not matter. If they have their lengths and factors, too, they are taken as they stand there, and not kept.
//
// On the CPU the atom's rows and scores stay in cache from the first product to the last. On a GPU the
// products with the weights are kernels on rows (gpu_rows.h), between which attention's own run.
#pragma once

#include "attention/attention.h"
#include "common/isa.h"
#include "common/math.h"
#include "rowwise/normalize.h"

namespace mdops {

constexpr int64_t kLayerLanes = 16;  // numbers of a row in `saved` are padded to whole vectors of any set

// How many of q, k and v, and with factors q once more, are kept: none that attention takes where they stand.
MDOPS_HD int attention_layer_parts(bool projects, bool factors, bool normalize) {
  return projects || factors || normalize ? 3 + factors : 0;
}

// Numbers a row that the forward pass keeps: those parts and h, padded, three lengths if there are parts, the
// norm's deviation, logsumexp, and on a GPU o.
MDOPS_HD int64_t attention_layer_saved(int64_t features, int64_t width, int parts) {
  const auto lanes = [](int64_t count) { return (count + kLayerLanes - 1) / kLayerLanes * kLayerLanes; };
  return (parts + 1) * lanes(width) + lanes(features) + (parts ? 5 : 2);
}

template <class T>
struct AttentionLayerArgs {
  AttentionArgs<T> attention;  // of one head; q, k and v are not in it
  int64_t features, columns;   // M; of g, more than M where project is null
  bool normalize;
  T eps;
  const T *project, *project_bias, *out, *out_bias, *norm,
      *norm_bias;    // (M, 3 A), (3 A,), (A, M), (M,), (M,), (M,)
  const T* factors;  // (A,), null: 1; project and project_bias are null where g has columns for q, k and v
  const T* g;        // (E, columns)
  const T* packed;   // the weights as a pass takes them
  T* saved;
  const T* grad;  // of the results, (E, M)

  // Where q begins in a row of g, without W.
  MDOPS_HD int64_t parts_begin() const { return columns - 3 * attention.width; }
  MDOPS_HD int kept_parts() const { return attention_layer_parts(project, factors, normalize); }
  MDOPS_HD bool in_place() const { return kept_parts() == 0; }
  MDOPS_HD int64_t kept() const { return attention_layer_saved(features, attention.width, kept_parts()); }
};

// Of the backward pass: by g (E, columns), gate (E, C) and switch (E,).
template <class T>
struct AttentionLayerResults {
  T *g, *gate, *switches;
};

// Numbers of the packed weights, and the packing.
MDOPS_DECLARE_KERNELS(int64_t attention_layer_packed_size(const AttentionLayerArgs<T>& args))
MDOPS_DECLARE_KERNELS(void attention_layer_pack(const AttentionLayerArgs<T>& args, bool backward, T* to))
// Bytes of scratch memory for an atom with so many neighbours.
MDOPS_DECLARE_KERNELS(int64_t attention_layer_scratch_size(const AttentionLayerArgs<T>& args, bool backward,
                                                           int64_t neighbors))
// Of one atom: the rows of the result (E, M), or the gradients.
MDOPS_DECLARE_KERNELS(void attention_layer_forward(const AttentionLayerArgs<T>& args, int64_t atom, T* out,
                                                   void* scratch))
MDOPS_DECLARE_KERNELS(void attention_layer_backward(const AttentionLayerArgs<T>& args, int64_t atom,
                                                    const AttentionLayerResults<T>& out, void* scratch))

}  // namespace mdops
