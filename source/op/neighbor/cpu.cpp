// Neighbour lists in their two forms: rows of fixed capacity, and pairs.
#include <limits>

#include "neighbor/cpu_loops.h"
#include "neighbor/ops.h"

namespace mdops {

static Atoms atoms_of(const Op& op, const NeighborArgs& a, int64_t num_types) {
  if (a.atoms > std::numeric_limits<int32_t>::max())
    fail(op, "argument `positions` holds more atoms than 32-bit indices can name");
  return {op.name, a.atoms, a.systems, a.positions, a.cell, a.pbc, a.batch, a.types, a.cutoff, num_types};
}

static Outputs<4> search_matrix(const Op& op, const NeighborArgs& a, int64_t ntypes, int64_t capacity,
                                bool sort) {
  if (ntypes < 1) fail(op, "argument `ntypes` is ", ntypes, ", expected at least 1");
  const Atoms atoms = atoms_of(op, a, ntypes);
  const Cells cells = sort_into_cells(atoms);

  Tensor neighbors = empty({atoms.size, capacity}, ScalarType::Int),
         images = empty({atoms.size, capacity}, ScalarType::Int);
  Tensor counts = empty({atoms.size, ntypes}, ScalarType::Int), needed = empty({2}, ScalarType::Long);
  const Matrix matrix{capacity, ntypes, data_of(neighbors), data_of(images), data_of(counts)};
  const LongestRow longest = write_matrix(atoms, cells, matrix, sort);
  needed.mutable_data_ptr<int64_t>()[0] = longest.size;
  needed.mutable_data_ptr<int64_t>()[1] = longest.atom;
  return {neighbors, images, counts, needed};
}

static Outputs<3> search_pairs(const Op& op, const NeighborArgs& a) {
  const Atoms atoms = atoms_of(op, a, 0);
  const Cells cells = sort_into_cells(atoms);

  // Searches twice, to count and to write: faster than moving pairs from buffers of the threads.
  const std::vector<int64_t> first = pair_starts(atoms, cells);
  Tensor i = empty({first.back()}, ScalarType::Long), j = empty({first.back()}, ScalarType::Long);
  Tensor shifts = empty({first.back(), 3}, ScalarType::Int);
  write_pairs(atoms, cells, first, i.mutable_data_ptr<int64_t>(), j.mutable_data_ptr<int64_t>(),
              shifts.mutable_data_ptr<int32_t>());
  return {i, j, shifts};
}

}  // namespace mdops

MDOPS_ON_CPU(NeighborOps)
