// Rotations within other ops: each device's kernels, compiled with the rotation ops.
#pragma once

#include "edge_rotation/edge_rotation.h"
#include "graph/row_index.h"

namespace mdops {

// For `RotateArgs`, `RotateSumArgs` and `RotateOuterArgs`, of float and double.
template <class Call, class Args>
void rotate(const Call& op, const Args& args);

inline void check_columns(const Op& op, int64_t columns) {
  if (columns < 1 || columns > kMostColumns)
    fail(op, "a matrix has ", columns, " columns, expected 1 to ", kMostColumns);
}

// Checks that rows (N, D, C) belong to the index's nodes, and fit.
inline void check_rotation(const Op& op, const RowIndex& of, Input x) {
  check_nodes(op, "x", x, of);
  check_columns(op, x.size(1));
}

}  // namespace mdops
