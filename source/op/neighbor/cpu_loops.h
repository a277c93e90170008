// The search on the CPU, from atoms to rows or pairs. Without PyTorch.
#pragma once

#include <vector>

#include "neighbor/cells.h"

namespace mdops {

// Rows of `capacity` places, (N, capacity), and counts (N, num_types).
struct Matrix {
  int64_t capacity, num_types;
  int32_t *neighbors, *images, *counts;
};

// The longest row before it was cut at the capacity, and the first atom that has it; 0 and -1 without rows.
struct LongestRow {
  int64_t size, atom;
};

// Writes all rows; with `sort` each type's neighbours by distance. Cells are those of sort_into_cells.
LongestRow write_matrix(const Atoms& atoms, const Cells& cells, const Matrix& matrix, bool sort);

// Where each atom's pairs begin, (N + 1).
std::vector<int64_t> pair_starts(const Atoms& atoms, const Cells& cells);
// Writes the pairs of every atom from first[atom] on: centres, neighbours and shifts (3 a pair).
void write_pairs(const Atoms& atoms, const Cells& cells, const std::vector<int64_t>& first, int64_t* centers,
                 int64_t* neighbors, int32_t* shifts);

}  // namespace mdops
