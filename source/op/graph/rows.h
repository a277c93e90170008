// Rows of numbers of nodes and of edges, which belong to one node each, -1 to none:
//
//   gather    y[e] = x[index[e]]                  (M, W) to (E, V), the first V columns; 0 for -1; added to
//             `base` (E, V) if given
//   scatter   x[m] = sum_{e: index[e] = m} y[e]   (E, V) to (M, W), the first V columns, then 0, in the
//             order of `order`; added to `base` and `more`, if given: per node (M, W), the second also the
//             same for all (1, W)
//   product   z[e] = x[x_index[e]] y[y_index[e]], number by number; 0 if one is -1
//   weighted  z[m] = sum_{e: index[e] = m} weight[e] x[x_index[e]]   (E, W), (M', W) to (M, W)
//   permute   y[e] = x[index[e]], with no index twice: `inverse` says which e a row of x goes to
//
// The first two are each other's transposes, and so are permutations by `index` and by `inverse`. A
// product's gradients are weighted sums, and those of a weighted sum are a product and a weighted sum.
// `order` names the edges of node 0, then those of node 1, ..., and `offsets` (M + 1) say where each node's
// begin; without `order` the edges are already in this order.
#pragma once

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

template <class T>
struct GatherArgs {
  const T* x;                            // (sources, W)
  const int32_t *index, *inverse;        // (rows,); (sources,) for a permutation
  int64_t rows, sources, width, stride;  // V, W
  T* y;
  const T* base = nullptr;

  // Whether the row's source exists.
  MDOPS_HD bool is_right(int64_t row) const {
    const int64_t from = index[row];
    return from >= -1 && from < sources && (from < 0 || !inverse || inverse[from] == row);
  }
};

template <class T>
struct ScatterArgs {
  const T* y;                              // (rows, V)
  const int32_t *index, *order, *offsets;  // (rows,), (rows,) or null, (targets + 1,)
  int64_t rows, targets, stride, width;    // V, W
  T* x;
  const T *base = nullptr, *more = nullptr;
  int64_t more_stride = 0;  // W, or 0 if it is the same for all
};

// Rows of nodes at edges: of the node at `index`, none for -1.
template <class T>
struct NodeRows {
  const T* x;            // (nodes, W)
  const int32_t* index;  // (rows,)
  int64_t nodes;

  MDOPS_HD bool is_right(int64_t row) const { return index[row] >= -1 && index[row] < nodes; }
  MDOPS_HD bool is_none(int64_t row) const { return index[row] < 0; }
  MDOPS_HD const T* at(int64_t row, int64_t width) const { return x + index[row] * width; }
};

template <class T>
struct ProductArgs {
  NodeRows<T> x, y;
  int64_t rows, width;
  T* z;  // (rows, W)
};

template <class T>
struct WeightedSumArgs {
  const T* weight;  // (rows, W)
  NodeRows<T> x;
  const int32_t *index, *order, *offsets;  // (rows,), (rows,) or null, (targets + 1,)
  int64_t rows, targets, width;
  T* z;  // (targets, W)
};

MDOPS_DECLARE_KERNELS(void gather_rows(const GatherArgs<T>& args, int64_t from, int64_t to))
MDOPS_DECLARE_KERNELS(void scatter_rows(const ScatterArgs<T>& args, int64_t from, int64_t to))
MDOPS_DECLARE_KERNELS(void row_products(const ProductArgs<T>& args, int64_t from, int64_t to))
MDOPS_DECLARE_KERNELS(void weighted_sums(const WeightedSumArgs<T>& args, int64_t from, int64_t to))

}  // namespace mdops
