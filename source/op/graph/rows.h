// Rows of numbers of nodes and of edges, which belong to one node each, -1 to none:
//
//   gather    y[e] = x[index[e]]                  (M, W) to (E, W); 0 for -1
//   scatter   x[m] = sum_{e: index[e] = m} y[e]   (E, W) to (M, W), in the order of `order`
//   permute   y[e] = x[index[e]], where no two e have one index: `inverse` says which e a row of x went to
//
// The first two are each other's transposes, and so are permutations by `index` and by `inverse`. `order`
// names the edges of node 0, then those of node 1, ..., and `offsets` (M + 1) say where each node's begin;
// without `order` the edges stand so themselves.
#pragma once

#include <cstdint>

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

template <class T>
struct GatherArgs {
  const T* x;                      // (sources, W)
  const int32_t *index, *inverse;  // (rows,); (sources,) of a permutation
  int64_t rows, sources, width;
  T* y;

  // Whether the row has a source that there is.
  MDOPS_HD bool is_right(int64_t row) const {
    const int64_t from = index[row];
    return from >= -1 && from < sources && (from < 0 || !inverse || inverse[from] == row);
  }
};

template <class T>
struct ScatterArgs {
  const T* y;                              // (rows, W)
  const int32_t *index, *order, *offsets;  // (rows,), (rows,) or null, (targets + 1,)
  int64_t rows, targets, width;
  T* x;
};

#define MDOPS_GRAPH_ROW_KERNELS(T)                                                            \
  MDOPS_DECLARE_KERNEL(void gather_rows(const GatherArgs<T>& args, int64_t from, int64_t to)) \
  MDOPS_DECLARE_KERNEL(void scatter_rows(const ScatterArgs<T>& args, int64_t from, int64_t to))
MDOPS_GRAPH_ROW_KERNELS(float)
MDOPS_GRAPH_ROW_KERNELS(double)

}  // namespace mdops
