// Rows of numbers times matrices, in float64: c[r][n] = sum_k a[r][k] b[net of r][k][n].
#pragma once

#include <cstdint>

namespace mdops {

struct GemmFp64Args {
  int64_t rows;
  int depth, cols;
  const double *a, *b;  // (rows, depth); (nets, depth, cols), or the transposed (nets, cols, depth)
  double* c;            // (rows, cols)
  // The net of each `tile_rows` rows, -1: none, and they stay unset. Null: the first.
  const int32_t* tile_net = nullptr;
  int tile_rows = 4, nets = 1;  // a multiple of 4; one net: of all numbers from 0 on
};

// To moments: each four rows r of `a` belong to an atom, row_atom[r / 4], whose matrix is its kind's, and
// number n of row r goes to c[atom][n][r % 4]. Rows of atoms outside 0 .. atoms - 1 are not written, and
// other kinds give no numbers.
struct MomentRows {
  const int32_t *row_atom = nullptr, *kinds = nullptr;
  int64_t atoms = 0;
};

}  // namespace mdops
