// Moments of edges' rows, for a linear layer by blocks of equal |m| that is applied once per node, not per
// edge. An edge e has a matrix T into its frame, from degrees up to L to rows of m = 0, -1 and 1, and rows
// y_0 (l' = 0 .. L), y_-, y_+ (l' = 1 .. L) of C channels in its frame (edge_frames.h, so2_layer.h). It has
// one weight w for each of equal groups of channels.
// With t_m = T[row of (l, m), d] for a column d of degree l, and 0 for l < |m|:
//
//   A_0[n, d, l'] = sum_e w t_0 y_0[l']
//   A_u[n, d, l'] = sum_e w (t_- y_-[l'] + t_+ y_+[l'])
//   A_v[n, d, l'] = sum_e w (t_+ y_-[l'] - t_- y_+[l'])        over the edges e of node n
//
// So for z_0 = y_0 W, z_- = y_- U - y_+ V, z_+ = y_- V + y_+ U, the sum of T^T z over edges is
// sum_l' A_0[l'] W[l', l] + A_u[l'] U[l', l] + A_v[l'] V[l', l] in column d.
//
// Backward, for gradients G of A, with sums over d:
//
//   by y_0   w t_0 G_0    by y_-   w (t_- G_u + t_+ G_v)    by y_+   w (t_+ G_u - t_- G_v)
//   by t_0   w y_0 G_0    by t_-   w (y_- G_u - y_+ G_v)    by t_+   w (y_+ G_u + y_- G_v)
//   by w     the sum over its channels of t times the gradients by t without w
#pragma once

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

struct OrderMomentShape {
  int64_t edges, nodes, degree, channels, groups;  // E, N, L, C, G

  MDOPS_HD int64_t rows() const { return 3 * degree + 1; }
  MDOPS_HD int64_t columns() const { return (degree + 1) * (degree + 1); }
  MDOPS_HD int64_t numbers() const { return rows() * channels; }       // of an edge, and of a column of A
  MDOPS_HD int64_t matrix() const { return rows() * columns(); }       // numbers of T
  MDOPS_HD int64_t middle() const { return (degree + 1) * channels; }  // numbers of m = 0
  MDOPS_HD int64_t side() const { return degree * channels; }          // of m = -1, and of m = 1
  // The group of the k-th number of an edge, or of a column of A.
  MDOPS_HD int64_t group(int64_t k) const { return k % channels / (channels / groups); }
};

// The degree of a column.
MDOPS_HD int64_t degree_of_column(int64_t d) {
  int64_t degree = 0;
  while ((degree + 1) * (degree + 1) <= d) ++degree;
  return degree;
}

// The node of each edge, and the edges of each node.
struct EdgesOfMoments {
  const int32_t *index, *order, *offsets;  // (E,), (E,) or null, (N + 1,)
  int64_t rows;                            // E
};

// Forward, `moments` are the result; backward, `grad` is by them, and the results are the gradients.
template <class T>
struct OrderMomentArgs {
  OrderMomentShape shape;
  const T *turn, *y, *weight;  // (E, R, D), (E, R, C), (E, G)
  EdgesOfMoments of;
  T* moments = nullptr;     // (N, D, R C): A_0, A_u and A_v side by side
  const T* grad = nullptr;  // (N, D, R C)
  T *by_turn = nullptr, *by_y = nullptr, *by_weight = nullptr;

  MDOPS_HD int64_t edge(int64_t place) const { return of.order ? of.order[place] : place; }
  MDOPS_HD bool is_none(int64_t e) const { return of.index[e] < 0; }
};

// Bytes of a thread's memory.
MDOPS_DECLARE_KERNELS(int64_t order_moment_scratch(const OrderMomentArgs<T>& args))
MDOPS_DECLARE_KERNELS(void order_moments_of(const OrderMomentArgs<T>& args, int64_t from, int64_t to,
                                            void* scratch))

}  // namespace mdops
