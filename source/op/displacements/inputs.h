// A pair list at an op's entry: `neighbors` (N, K), and `batch` (N,) with the system of each atom.
#pragma once

#include <limits>

#include "common/checked.h"
#include "displacements/args.h"

namespace mdops {

inline PairRows take_pairs(auto& in, Input batch, Input neighbors, int64_t systems, int64_t atoms = kAny,
                           int64_t width = kAny) {
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max();
  PairRows rows{};
  in.take(rows.neighbors, "neighbors", neighbors, {atoms, width});
  rows.atoms = rows.rows = neighbors.size(0), rows.width = neighbors.size(1), rows.systems = systems;
  if (rows.atoms > kLargest || rows.width > kLargest || systems < 0 || systems > kLargest)
    fail(in.op, "atoms, slots of a row and systems must fit into 32-bit indices");
  in.take_range(rows.batch, "batch", batch, {rows.atoms}, 0, systems);
  check_range(in.op, "neighbors", rows.neighbors, neighbors.numel(), -1, rows.atoms);
  return rows;
}

}  // namespace mdops
