// An order of atoms in which neighbours in space are near each other.
#pragma once

#include <cstdint>
#include <vector>

namespace mdops {

// The atoms to order, and the neighbours of the first `centers`.
struct AtomsToOrder {
  const double* positions;  // (N, stride), of which three columns count
  int64_t stride;
  const double* cell;        // (S, 3, 3)
  const int32_t* batch;      // (N,)
  const int32_t* neighbors;  // (N, list_width)
  const int32_t* counts;     // (N, ntypes)
  int64_t atoms, systems, list_width, ntypes, centers;
};

// The neighbours of a run of atoms in this order are the run and its surroundings, so that its thread adds to
// few pages of rows (paged_rows.h), however the atoms are numbered. If their numbers do as well for this many
// threads, the order is theirs. Systems follow each other, and atoms of one whose cell has a volume are
// wrapped into it.
class SpatialOrder {
 public:
  SpatialOrder(const AtomsToOrder& of, int64_t threads);

  // The atoms below `end`, in this order.
  std::vector<int32_t> atoms_below(int64_t end) const;

  // The place of each atom, and the atom at each place; null if they are in the order of their numbers.
  const int32_t* places() const { return places_.empty() ? nullptr : places_.data(); }
  const int32_t* atoms() const { return atoms_.empty() ? nullptr : atoms_.data(); }

 private:
  std::vector<int32_t> places_, atoms_;
};

}  // namespace mdops
