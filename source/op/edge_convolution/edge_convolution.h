// Convolutions along the edges e of a graph between nodes i(e) and j(e), whose filters are linear in
// numbers of the edges; also sums of nodes times other numbers of the edges. All are derivatives of one form,
// which is linear in each of its arguments but W, and affine in W:
//
//   L = sum_e sum_c x_jc (a_i0c w_e (b_e W)_c + sum_q t_eq a_iqc)
//
//   a (M, 1 + Q, C)   x (M', C)   b (E, K)   w (E,)   t (E, Q)   W (K, C)
//
//   by a  y_i0c = sum_{e of i} x_jc w_e (b_e W)_c, the convolution     y_iqc = sum_{e of i} t_eq x_jc
//   by x  sum_{e of j} a_i0c w_e (b_e W)_c + sum_q t_eq a_iqc
//   by b  w_e z_ek with z_ek = sum_c x_jc a_i0c W_kc     by w  sum_k b_ek z_ek     by t  sum_c x_jc a_iqc
//   by W  sum_e w_e b_ek x_jc a_i0c
//
// The gradients of each of these are such derivatives again, with directions in place of arguments.
// An edge without one of its nodes adds nothing, and has zeros. On a CPU the pass by b, w and t includes the
// term in L of sums of an edge's own numbers, sum_{e of i} t_eq b_ek: sum_e sum_q sum_k t_eq b_ek s_iqk.
#pragma once

#include "common/isa.h"
#include "common/math.h"
#include "graph/rows.h"

namespace mdops {

// What is null belongs to another pass.
template <class T>
struct EdgeConvolutionArgs {
  int64_t rows, inputs, turns, width;  // E, K, Q, C
  NodeRows<T> a, x;
  const T *b, *w, *t, *weight;
  // The edges of the nodes that the sums are of.
  const int32_t *index = nullptr, *order = nullptr, *offsets = nullptr;
  int64_t targets = 0;
  const T* own = nullptr;  // s (M, Q, K)
  T *by_a = nullptr, *by_x = nullptr, *by_b = nullptr, *by_w = nullptr, *by_t = nullptr, *by_weight = nullptr;

  MDOPS_HD int64_t a_width() const { return (1 + turns) * width; }
};

// Memory of the CPU's kernels: bytes of the packed weights and of a thread's, and how many numbers a share of
// the sums by W has.
struct EdgeConvolutionSizes {
  int64_t packed, scratch, sums;
};

MDOPS_DECLARE_KERNELS(EdgeConvolutionSizes convolution_sizes(const EdgeConvolutionArgs<T>& args))
MDOPS_DECLARE_KERNELS(void convolution_pack(const EdgeConvolutionArgs<T>& args, void* packed))
// The sums of the nodes [from, to), by a or by x.
MDOPS_DECLARE_KERNELS(void convolution_nodes(const EdgeConvolutionArgs<T>& args, int64_t from, int64_t to,
                                             const void* packed, void* scratch))
// The edges [from, to): by b, w and t.
MDOPS_DECLARE_KERNELS(void convolution_edges(const EdgeConvolutionArgs<T>& args, int64_t from, int64_t to,
                                             const void* packed, void* scratch))
// Their sums by W.
MDOPS_DECLARE_KERNELS(void convolution_weight(const EdgeConvolutionArgs<T>& args, int64_t from, int64_t to,
                                              void* scratch, T* sums))
MDOPS_DECLARE_KERNELS(void convolution_weight_sum(const EdgeConvolutionArgs<T>& args, const T* sums,
                                                  int64_t shares))

}  // namespace mdops
