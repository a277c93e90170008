// Coefficients of nodes in the frames of edges. An edge e has a matrix T[e] (R, D) and belongs to a node
// n(e), -1 to none:
//
//   rotate   y[e] = T[e] x[n(e)]                         (N, D, C) to (E, R, C); 0 for -1
//   sum      x[n] = sum_{e: n(e) = n} T[e]^T y[e]        (E, R, C) to (N, D, C), in the order of `order`
//   outer    T[e] = y[e] x[n(e)]^T                       (E, R, C), (N, D, C) to (E, R, D); 0 for -1
//
// Each is linear in both of its arguments, and its gradients are the other two. All may have a weight per
// edge, w[e], which multiplies results, and in `sum` its terms. For the gradient x of the sum, the weight's
// gradient is <T[e], y[e] x[n(e)]^T>; then `outer` computes it, too.
#pragma once

#include "common/isa.h"
#include "graph/rows.h"

namespace mdops {

constexpr int64_t kMostColumns = 128;  // D

struct RotationShape {
  int64_t edges, nodes, rows, columns, channels;  // E, N, R, D, C
};

template <class T>
struct RotateArgs {
  RotationShape shape;
  const T* turn;              // (E, R, D)
  NodeRows<T> x;              // (N, D, C)
  T* y;                       // (E, R, C)
  const T* weight = nullptr;  // (E,)
};

template <class T>
struct RotateSumArgs {
  RotationShape shape;
  const T *turn, *y;                       // (E, R, D), (E, R, C)
  const int32_t *index, *order, *offsets;  // (E,), (E,) or null, (N + 1,)
  T* x;                                    // (N, D, C)
  const T* weight = nullptr;               // (E,)
};

template <class T>
struct RotateOuterArgs {
  RotationShape shape;
  const T* y;                                       // (E, R, C)
  NodeRows<T> x;                                    // (N, D, C)
  T* turn;                                          // (E, R, D)
  const T *weight = nullptr, *of_weight = nullptr;  // (E,), and the matrices (E, R, D) of its gradient
  T* by_weight = nullptr;                           // (E,)
};

MDOPS_DECLARE_KERNELS(void rotate_rows(const RotateArgs<T>& args, int64_t from, int64_t to))
MDOPS_DECLARE_KERNELS(void rotate_sums(const RotateSumArgs<T>& args, int64_t from, int64_t to))

// The numbers of the CPU's copy of nodes' rows by channel for outer products, (N, C, D) with D in whole
// vectors.
MDOPS_DECLARE_KERNELS(int64_t rotate_outer_room(const RotateOuterArgs<T>& args))
MDOPS_DECLARE_KERNELS(void rotate_by_channel(const RotateOuterArgs<T>& args, T* room, int64_t from,
                                             int64_t to))
MDOPS_DECLARE_KERNELS(void rotate_outers(const RotateOuterArgs<T>& args, const T* room, int64_t from,
                                         int64_t to))

}  // namespace mdops
