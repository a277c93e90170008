// Rotations within other ops: the kernels of each device, compiled with those of the own ops.
#pragma once

#include <string>

#include "common/tensor.h"
#include "edge_rotation/edge_rotation.h"
#include "graph/row_index.h"

namespace mdops {

// Of `RotateArgs`, `RotateSumArgs` and `RotateOuterArgs`, of float and double.
template <class Call, class Args>
void rotate(const Call& op, const Args& args);

inline void check_columns(const Op& op, int64_t columns) {
  if (columns < 1 || columns > kMostColumns)
    fail(op, "a matrix has " + std::to_string(columns) + " columns, expected 1 to " +
                 std::to_string(kMostColumns));
}

// That rows of nodes (N, D, C) are of the index's nodes, and fit.
inline void check_rotation(const Op& op, const RowIndex& of, const Tensor& x) {
  if (of.targets != x.size(0))
    fail(op, "argument `x` has " + std::to_string(x.size(0)) + " rows, and `offsets` is of " +
                 std::to_string(of.targets));
  check_columns(op, x.size(1));
}

}  // namespace mdops
