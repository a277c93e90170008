// The sums T of an atom's rows behind layers of DPA-1's attention, all in one pass, for simulation. Rows are
// coordinates of few columns (mathematics.md, "Layers in coordinates"): those of layer l are x_l (E, D),
// and its q, k and v have A columns each. The first rows come with theirs: (E, D + 3 A), x_0 and behind it q,
// k and v as attention takes them. With o_l of attention.h,
//
//   y = x_l X_l + o_l O_l + c_l          (E, D'), D' columns of the next layer, or M behind the last
//   x_(l+1) = r y,  r = (|y|^2 / M + eps)^-1/2
//   q, k, v = x_(l+1) W + b, of length 1 where `normalize`, and q times the factors, of which none is 0
//   T_na = sum_j R_ja (w x_L + b)_j      R the environment matrix, j the rows of atom n: (N, 4, M)
//
// X, O and c are such that y has the length of LayerNorm's h - mean(h), whose M numbers its columns stand
// for. Backwards, with G_na the gradient of T and (.) a sum over columns,
//
//   R_ja: G_na.(w x_L + b)_j             x_L: w sum_a R_ja G_na
//   y: r (dx - x (x.dx) / M)             x_l: dy X^T,  o_l: dy O^T
//   x_l, of its q, k and v too: + sum of them (dq - q q.dq) / |q| W^T, q the vector of length 1
//
// x_L, of M columns, is not kept: the way back makes it again on a CPU, and does without on a GPU
// (gpu_end.h).
#pragma once

#include "attention/attention.h"
#include "common/isa.h"
#include "rowwise/normalize.h"

namespace mdops {

constexpr int kMostJoinedLayers = 8;

// Of a layer and what is behind it.
template <class T>
struct JoinedLayer {
  int64_t columns, width;           // D, A
  T scale;                          // of q.k
  const T *inner, *out, *bias;      // X (D, D'), O (A, D'), c (D',)
  const T *project, *project_bias;  // W (D, 3 A), b (3 A,); of the first layer null
  const T* factors;                 // (A,), of the first layer null
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
  // D' behind a layer.
  MDOPS_HD int64_t behind(int l) const { return l + 1 < layers ? layer[l + 1].columns : features; }
};

namespace {  // each instruction set has its own

// What the forward pass keeps of each row: arrays of (E, columns) one after the other, those of single
// numbers last. `take(columns)` gives the next.
template <class T>
struct JoinedRows {
  // Of a layer: q, k and v, but for the first layer; o; and x behind it, but for the last layer.
  T *part[3], *o, *x;
  T *shrink[3], *logsumexp, *deviation;  // of q, k and v; of the softmax; r

  template <class Take>
  void take_rows(const AttentionMomentsArgs<T>& args, int l, const Take& take) {
    const int64_t width = args.layer[l].width;
    for (T*& p : part) p = l ? take(width) : nullptr;
    o = take(width), x = l + 1 < args.layers ? take(args.behind(l)) : nullptr;
  }
  template <class Take>
  void take_numbers(int l, const Take& take) {
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

// Of the backward pass: by the rows, the environment matrix, gate (E, C) and switch (E,), null where absent.
template <class T>
struct AttentionMomentsResults {
  T *rows, *environment, *gate, *switches;
};

// Numbers of scratch memory that a pass needs for each of an atom's rows.
MDOPS_DECLARE_KERNELS(int64_t attention_moments_scratch(const AttentionMomentsArgs<T>& args))
// Of one atom: T (4, M), or the gradients.
MDOPS_DECLARE_KERNELS(void attention_moments_forward(const AttentionMomentsArgs<T>& args, int64_t atom,
                                                     T* out, T* scratch))
MDOPS_DECLARE_KERNELS(void attention_moments_backward(const AttentionMomentsArgs<T>& args, int64_t atom,
                                                      const AttentionMomentsResults<T>& out, T* scratch))

}  // namespace mdops
