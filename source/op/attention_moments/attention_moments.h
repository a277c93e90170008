// The sums T of an atom's rows after layers of DPA-1's attention, all in one pass, for simulation. Rows are
// coordinates of few columns (mathematics.md, "Layers in coordinates"): those of layer l are x_l (E, D),
// and its q, k and v have A columns each. The first rows include them: (E, D + 3 A), x_0 and then q, k
// and v as attention takes them. With o_l of attention.h,
//
//   y = x_l X_l + o_l O_l + c_l          (E, D'), D' columns of the next layer, or M after the last
//   x_(l+1) = r y,  r = (|y|^2 / M + eps)^-1/2
//   q, k, v = x_(l+1) W + b, of length 1 where `normalize`, and q times the factors, of which none is 0
//   T_na = sum_j R_ja (w x_L + b)_j      R the environment matrix, j the rows of atom n: (N, 4, M)
//
// X, O and c are such that y has the length of LayerNorm's h - mean(h), whose M numbers its columns encode.
// Backward, with G_na the gradient of T and (.) a sum over columns,
//
//   R_ja: G_na.(w x_L + b)_j             x_L: w sum_a R_ja G_na
//   y: r (dx - x (x.dx) / M)             x_l: dy X^T,  o_l: dy O^T
//   x_l, of its q, k and v too: + sum of them (dq - q q.dq) / |q| W^T, q the vector of length 1
//
// x_L, of M columns, is not saved: the backward pass recomputes it on a CPU, and does not need it on a GPU
// (gpu_end.h).
#pragma once

#include "attention/attention.h"
#include "common/isa.h"
#include "rowwise/normalize.h"

namespace mdops {

constexpr int kMostJoinedLayers = 8;

// A layer and its output map.
template <class T>
struct JoinedLayer {
  int64_t columns, width;           // D, A
  T scale;                          // of q.k
  const T *inner, *out, *bias;      // X (D, D'), O (A, D'), c (D',)
  const T *project, *project_bias;  // W (D, 3 A), b (3 A,); null in the first layer
  const T* factors;                 // (A,), null in the first layer
};

template <class T>
struct AttentionMomentsArgs {
  AttentionArgs<T> attention;  // of one head; q, k, v, scale and widths are not in it
  int layers;
  int64_t features;  // M
  bool normalize;
  T eps;
  JoinedLayer<T> layer[kMostJoinedLayers];
  const T *norm, *norm_bias;    // w, b
  const T *rows, *environment;  // (E, columns()), (E, 4)
  T* saved;                     // see `JoinedRows`
  const T* grad;                // of T

  MDOPS_HD int64_t columns() const { return layer[0].columns + 3 * layer[0].width; }
  // D' of the next layer, or M.
  MDOPS_HD int64_t behind(int l) const { return l + 1 < layers ? layer[l + 1].columns : features; }
};

namespace {  // each instruction set has its own

// What the forward pass saves of each row: arrays of (E, columns) one after another, those of single numbers
// last. `take(columns)` returns the next.
template <class T>
struct JoinedRows {
  // Of each layer: q, k and v, except in the first; o; and its output x, except in the last.
  T *part[3], *o, *x;
  T *shrink[3], *logsumexp, *deviation;  // of q, k and v; of the softmax; r

  void take_rows(const AttentionMomentsArgs<T>& args, int l, const auto& take) {
    const int64_t width = args.layer[l].width;
    for (T*& p : part) p = l ? take(width) : nullptr;
    o = take(width), x = l + 1 < args.layers ? take(args.behind(l)) : nullptr;
  }
  void take_numbers(int l, const auto& take) {
    for (T*& s : shrink) s = l ? take(1) : nullptr;
    logsumexp = take(1), deviation = take(1);
  }
};

template <class T>
struct JoinedSaved {
  JoinedRows<T> layer[kMostJoinedLayers];
  T* atom;  // the atom of each row, as the bits of an int32
  int64_t columns = 0;

  JoinedSaved(const AttentionMomentsArgs<T>& args, T* memory) {
    const auto take = [&](int64_t count) {
      T* const piece = memory ? memory + columns * args.attention.rows : nullptr;
      columns += count;
      return piece;
    };
    for (int l = 0; l < args.layers; ++l) layer[l].take_rows(args, l, take);
    for (int l = 0; l < args.layers; ++l) layer[l].take_numbers(l, take);
    atom = take(1);
  }
};

}  // namespace

// For the backward pass: by the rows, the environment matrix, gate (E, C) and switch (E,), null if absent.
template <class T>
struct AttentionMomentsResults {
  T *rows, *environment, *gate, *switches;
};

// Size of the scratch memory of a pass for each of an atom's rows.
MDOPS_DECLARE_KERNELS(int64_t attention_moments_scratch(const AttentionMomentsArgs<T>& args))
// For one atom: T (4, M), or the gradients.
MDOPS_DECLARE_KERNELS(void attention_moments_forward(const AttentionMomentsArgs<T>& args, int64_t atom,
                                                     T* out, T* scratch))
MDOPS_DECLARE_KERNELS(void attention_moments_backward(const AttentionMomentsArgs<T>& args, int64_t atom,
                                                      const AttentionMomentsResults<T>& out, T* scratch))

}  // namespace mdops
