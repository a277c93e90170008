// A layer of DPA-1's attention, for simulation: it maps the rows g (E, M) of all atoms' neighbours
// to
//
//   norm(g + o W_o + b_o),   o of attention.h with q, k, v = g W + b, of length 1 if `normalize`, one head
//
// with norm(h)_c = w_c (h_c - mean h) / sqrt(var h + eps) + b_c. For the gradient it saves
// q, k and v, the normalised h, and a few numbers a row, but nothing n x n. It has gradients only by g, gate
// and switch:
//
//   h: LayerNorm's      o: dh W_o^T      q, k, v: attention.h's, then of x / |x|: (dx - x x.dx) / |x|
//   g: dh + (dq, dk, dv) W^T
//
// q, k and v may represent longer vectors, as coordinates in orthonormal bases of their subspaces: their
// lengths are the same, and W_o includes the basis of v. Then q.k is a sum with `factors`, the cosines of the
// angles between the bases of q and of k. In the first layer the coordinates are functions of the distance,
// as g is: without W they are the last 3 A columns of rows that begin with g, and so are their gradients.
// Columns between, which align the rows, do not matter. If they already include lengths and factors, they are
// used in place, and not saved.
//
// On the CPU an atom's rows and scores stay in cache from the first product to the last. On a GPU, products
// with the weights are kernels on rows (gpu_rows.h), and attention's kernels run between them.
#pragma once

#include "attention/attention.h"
#include "common/isa.h"
#include "common/math.h"
#include "rowwise/normalize.h"

namespace mdops {

constexpr int64_t kLayerLanes = 16;  // numbers of a row in `saved` are padded to whole vectors of any set

// How many of q, k and v, and with factors q again, are saved: none if attention reads them in place.
MDOPS_HD int attention_layer_parts(bool projects, bool factors, bool normalize) {
  return projects || factors || normalize ? 3 + factors : 0;
}

// Numbers per row that the forward pass saves: those parts and h, padded, three lengths if there are parts,
// the norm's deviation, logsumexp, and on a GPU o.
MDOPS_HD int64_t attention_layer_saved(int64_t features, int64_t width, int parts) {
  const auto lanes = [](int64_t count) { return (count + kLayerLanes - 1) / kLayerLanes * kLayerLanes; };
  return (parts + 1) * lanes(width) + lanes(features) + (parts ? 5 : 2);
}

template <class T>
struct AttentionLayerArgs {
  AttentionArgs<T> attention;  // of one head; q, k and v are not in it
  int64_t features, columns;   // M; columns of g, more than M if project is null
  bool normalize;
  T eps;
  const T *project, *project_bias, *out, *out_bias, *norm,
      *norm_bias;    // (M, 3 A), (3 A,), (A, M), (M,), (M,), (M,)
  const T* factors;  // (A,), null: 1; project and project_bias are null if g has columns for q, k and v
  const T* g;        // (E, columns)
  const T* packed;   // the weights as packed for a pass
  T* saved;
  const T* grad;  // by the results, (E, M)

  // Where q begins in a row of g, without W.
  MDOPS_HD int64_t parts_begin() const { return columns - 3 * attention.width; }
  MDOPS_HD int kept_parts() const { return attention_layer_parts(project, factors, normalize); }
  MDOPS_HD bool in_place() const { return kept_parts() == 0; }
  MDOPS_HD int64_t kept() const { return attention_layer_saved(features, attention.width, kept_parts()); }
};

// For the backward pass: by g (E, columns), gate (E, C) and switch (E,).
template <class T>
struct AttentionLayerResults {
  T *g, *gate, *switches;
};

// Numbers of the packed weights, and the packing.
MDOPS_DECLARE_KERNELS(int64_t attention_layer_packed_size(const AttentionLayerArgs<T>& args))
MDOPS_DECLARE_KERNELS(void attention_layer_pack(const AttentionLayerArgs<T>& args, bool backward, T* to))
// Bytes of scratch memory for an atom with this many neighbours.
MDOPS_DECLARE_KERNELS(int64_t attention_layer_scratch_size(const AttentionLayerArgs<T>& args, bool backward,
                                                           int64_t neighbors))
// For one atom: the rows of the result (E, M), or the gradients.
MDOPS_DECLARE_KERNELS(void attention_layer_forward(const AttentionLayerArgs<T>& args, int64_t atom, T* out,
                                                   void* scratch))
MDOPS_DECLARE_KERNELS(void attention_layer_backward(const AttentionLayerArgs<T>& args, int64_t atom,
                                                    const AttentionLayerResults<T>& out, void* scratch))

}  // namespace mdops
