// Spline moments A of atoms times the tables of spline coefficients C of their types, and back:
//
//   t[r][c][m] = sum_p A[i][p][c] C[k][p][m],  i = rows[r], k = kinds[i]
//   dA[i][p][c] = sum_m C[k][p][m] dt[r][c][m],  zero for atoms that have no row
//
// Both are out[c][n] = sum_d in[d][c] B[d][n] of a row: with d = p, n = m and B = C, or d = m, n = p and B =
// C transposed.
#pragma once

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

template <class T>
struct MomentProductArgs {
  int64_t rows, atoms;
  int columns, depth, width;  // of c, d and n
  int tables;
  const int32_t *row_atom, *kinds;  // (rows,), (atoms,)
  const T *in, *table;              // of the rows' atoms, or of the rows; (tables, depth, width)
  T* out;

  // The table of a row, or -1 where there is none.
  MDOPS_HD int kind_of(int64_t row) const {
    const int atom = row_atom[row];
    const int kind = atom >= 0 && atom < atoms ? kinds[atom] : -1;
    return kind < tables ? kind : -1;
  }
  MDOPS_HD int64_t in_size() const { return static_cast<int64_t>(depth) * columns; }
  MDOPS_HD int64_t out_size() const { return static_cast<int64_t>(width) * columns; }

  // The index of number (d, c) in `in` and of (n, c) in `out`: moments have the columns last, and belong to
  // atoms.
  template <bool Back>
  MDOPS_HD int64_t in_at(int64_t row, int d, int c) const {
    return Back ? row * in_size() + static_cast<int64_t>(c) * depth + d
                : row_atom[row] * in_size() + static_cast<int64_t>(d) * columns + c;
  }
  template <bool Back>
  MDOPS_HD int64_t out_at(int64_t row, int n, int c) const {
    return Back ? row_atom[row] * out_size() + static_cast<int64_t>(n) * columns + c
                : row * out_size() + static_cast<int64_t>(c) * width + n;
  }
};

// Of the CPU's kernels: rows of a block, and bytes of a thread's memory.
struct MomentProductSizes {
  int64_t rows, scratch;
};

#define MDOPS_MOMENT_PRODUCT_KERNELS(T)                                                           \
  MDOPS_DECLARE_KERNEL(MomentProductSizes moment_product_sizes(const MomentProductArgs<T>& args)) \
  /* Some rows, all of one table. */                                                              \
  MDOPS_DECLARE_KERNEL(void moment_product_rows(const MomentProductArgs<T>& args, bool back,      \
                                                const int32_t* rows, int64_t count, void* scratch))
MDOPS_MOMENT_PRODUCT_KERNELS(float)
MDOPS_MOMENT_PRODUCT_KERNELS(double)

}  // namespace mdops
