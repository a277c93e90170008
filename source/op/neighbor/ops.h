// The ops on neighbour lists, their arguments checked at entry in all but their values. A device has
// `search_matrix` and `search_pairs`.
#pragma once

#include "common/bind.h"
#include "neighbor/neighbor.h"

namespace mdops {

// The atoms and cells of all systems.
struct NeighborArgs {
  const double *positions, *cell;
  const bool* pbc;
  const int32_t *batch, *types;
  double cutoff;
  int64_t atoms, systems;
};

template <class Device>
struct NeighborOps {
  static NeighborArgs arguments(Checked<Device>& in, Input positions, Input cell, Input pbc, Input batch,
                                Input types, double cutoff) {
    NeighborArgs a{};
    in.take(a.positions, "positions", positions, {kAny, 3});
    in.take(a.cell, "cell", cell, {kAny, 3, 3});
    a.atoms = positions.size(0), a.systems = cell.size(0), a.cutoff = cutoff;
    in.take(a.pbc, "pbc", pbc, {a.systems, 3});
    in.take(a.batch, "batch", batch, {a.atoms});
    in.take(a.types, "types", types, {a.atoms});
    if (!(cutoff > 0 && cutoff <= kLargestLength))
      fail(in.op, "argument `cutoff` is ", cutoff, ", expected a positive length up to 1e9 A");
    return a;
  }

  static Outputs<4> neighbor_matrix(Checked<Device>& in, Input positions, Input cell, Input pbc, Input batch,
                                    Input types, double cutoff, int64_t ntypes, int64_t capacity, bool sort) {
    const NeighborArgs a = arguments(in, positions, cell, pbc, batch, types, cutoff);
    if (capacity < 0) fail(in.op, "argument `capacity` is ", capacity, ", expected at least 0");
    return search_matrix(in.op, a, ntypes, capacity, sort);
  }

  static Outputs<3> neighbor_pairs(Checked<Device>& in, NeighborArgs& a) { return search_pairs(in.op, a); }

  MDOPS_IMPLEMENT(NeighborOps, neighbor_matrix, neighbor_pairs)
};

}  // namespace mdops
