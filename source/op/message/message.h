// A layer of message passing, for rows r that connect two nodes each, a first and a second: edges between
// atoms, or angles between edges. The rows of one `first` are a contiguous segment.
//
//   z_r  = x_r W + P[first_r] + Q[second_r]      x (R, X), W (X, C), P (F, C), Q (S, C)
//   y_r  = f(z_r)                                columns: first the `sent` ones, then the `kept` ones
//   s_f  = sum of w_r y_r over the rows of f     sent columns; in the order of the rows
//   x'_r = x_r + c y_r                           kept columns; there are X of them, or none
//
// Backward, for the gradients g_s by s and g_x by x':
//
//   g_r = [w_r g_s[first_r], c g_x,r]    dz_r = f'(z_r) g_r
//   by x  dz_r W^T + g_x,r       by P, Q  the sums of dz_r over the rows of each
//   by w  <g_s[first_r], y_r>    by W     x^T dz      by c  the sum of g_x,r y_r
//
// The derivative of <u_x, by x> + <u_P, by P> + <u_Q, by Q> + <u_w, by w>, with
//
//   v_r = u_x,r W + u_P[first_r] + u_Q[second_r]
//   h_r = f''(z_r) g_r v_r + f'(z_r) [u_w,r g_s[first_r], 0]
//   by g_s  the sum of w_r f'(z_r) v_r + u_w,r y_r      by g_x  c f'(z_r) v_r + u_x,r
//   by x    h_r W^T             by P, Q  the sums of h_r
//   by w    <g_s[first_r], f'(z_r) v_r>    by W  x^T h + u_x^T dz    by c  the sum of g_x,r f'(z_r) v_r
//
// Rows without a `first` come last: x' is x there, and they are in no sum.
//
// Rows may have frames F_r of three numbers, and some rows may be gathered for other uses:
//
//   T_f = sum of F_r times x_r over the rows of f, (3, X)      t: x_r's first V columns, for each taken row
//   by x  plus F_r g_T[first_r] and the sum of g_t             by F  <g_T[first_r], x_r>, three numbers
//
// Or x_r is a number times a vector, n_r u: then z_r = n_r (u W) + P[first_r] + Q[second_r], and the gradient
// by n is <by x, u>.
#pragma once

#include "common/activation.h"
#include "common/isa.h"

namespace mdops {

// The frames, (R, 3), and the M taken rows of V columns: the row each is taken from, and where those of each
// row begin (R + 1).
template <class T>
struct MessageFrames {
  const T *frame = nullptr, *grad_moments = nullptr, *grad_taken = nullptr;
  T* by_frame = nullptr;
  const int32_t *taken = nullptr, *taken_offsets = nullptr;
  int64_t count = 0, width = 0;  // M, V
  bool wanted = false;
};

// For rows that are a number times a vector: n (R,), u (X,).
template <class T>
struct MessageOuter {
  const T *number = nullptr, *vector = nullptr;
  T* by_number = nullptr;
};

// Null arrays belong to another pass, or are not wanted.
template <class T>
struct MessageArgs {
  int64_t rows, inputs, sent, kept;     // R, X, columns
  int64_t firsts, seconds, groups = 0;  // F, S
  int parts = 2;                        // of float16, of each number in products on a GPU
  Activation activation;
  T threshold;
  const int32_t *first, *first_offsets, *second, *second_order, *second_offsets;
  // Where the firsts of each group begin (groups + 1,), if rows are all pairs of a group's leading nodes,
  // sorted by second.
  const int32_t* group_offsets = nullptr;
  const T *x, *weight, *p, *q, *row_weight, *scale;
  const T *grad_sent = nullptr, *grad_kept = nullptr;
  const T *along_x = nullptr, *along_p = nullptr, *along_q = nullptr, *along_row_weight = nullptr;
  T *to_sent = nullptr, *to_kept = nullptr;  // s and x', or the gradients by g_s and g_x
  T *by_x = nullptr, *by_weight = nullptr, *by_p = nullptr, *by_q = nullptr, *by_row_weight = nullptr,
    *by_scale = nullptr;

  // The rows of dz or h, (rows, columns), if the sums for Q read them; on a CPU, without groups.
  T* by_z = nullptr;
  MessageFrames<T> frames{};  // for kernels that take them
  MessageOuter<T> outer{};    // the same; then x and by_x are null, and `weight` is u W (C,)

  MDOPS_HD int64_t columns() const { return sent + kept; }
};

// Memory of the CPU's kernels: bytes of packed weights and of a thread's, and numbers that a share sums.
struct MessageSizes {
  int64_t packed, scratch, sums;
};

MDOPS_DECLARE_KERNELS(MessageSizes message_sizes(const MessageArgs<T>& args))
MDOPS_DECLARE_KERNELS(void message_pack(const MessageArgs<T>& args, void* packed))
// The rows of the firsts [from, to), which are whole groups; `sums`: of the gradients by weights.
MDOPS_DECLARE_KERNELS(void message_rows(const MessageArgs<T>& args, int64_t from, int64_t to,
                                        const void* packed, void* scratch, T* sums))
// The gradients by weights, from the sums of `shares` shares.
MDOPS_DECLARE_KERNELS(void message_weights(const MessageArgs<T>& args, const T* sums, int64_t shares))

}  // namespace mdops
