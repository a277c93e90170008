// The terms that messages along angles add to z for their two edges (message.h), for rows r of one atom each,
// the edges that make angles:
//
//   P_r = x_r U + N[atom of r]     Q_r = x_r V
//   x (R, I), U and V (I, C) side by side in W (I, 2 C), N (A, C)
//   by x  by P U^T + by Q V^T      by N  the sum of by P over the rows of an atom
//
// Rows of no atom come after all others, and are zeros.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {

template <class T>
struct AngleEndsArgs {
  const T *x, *weight, *of_atom, *grad_p, *grad_q;
  const int32_t *index, *offsets;  // (R,), (A + 1,)
  int64_t rows, atoms, inputs, columns;
  T *p, *q, *by_x, *by_atom;

  // Whether a row is of no atom, or among those of its atom.
  MDOPS_HD bool is_right(int64_t row) const {
    const int64_t atom = index[row];
    return atom == -1 || (atom >= 0 && atom < atoms && offsets[atom] <= row && row < offsets[atom + 1]);
  }
};

// Column c of P or, after these, of Q.
template <class T>
MDOPS_HD void make_end(const AngleEndsArgs<T>& args, int64_t row, int64_t c, T none) {
  const int64_t atom = args.index[row], columns = args.columns;
  T sum = 0;
  for (int64_t k = 0; atom >= 0 && k < args.inputs; ++k)
    sum += args.x[row * args.inputs + k] * args.weight[2 * k * columns + c];
  if (!args.is_right(row))
    sum = none;
  else if (atom >= 0 && c < columns)
    sum += args.of_atom[atom * columns + c];
  (c < columns ? args.p[row * columns + c] : args.q[row * columns + c - columns]) = sum;
}

template <class T>
MDOPS_HD void make_by_x(const AngleEndsArgs<T>& args, int64_t row, int64_t k, T none) {
  const int64_t columns = args.columns;
  const T *const by_p = args.grad_p + row * columns, *const by_q = args.grad_q + row * columns;
  const T *const u = args.weight + 2 * k * columns, *const v = u + columns;
  T sum = args.is_right(row) ? 0 : none;
  for (int64_t c = 0; args.index[row] >= 0 && c < columns; ++c) sum += by_p[c] * u[c] + by_q[c] * v[c];
  args.by_x[row * args.inputs + k] = sum;
}

template <class T>
MDOPS_HD void make_by_atom(const AngleEndsArgs<T>& args, int64_t atom, int64_t c, T none) {
  const int64_t begin = args.offsets[atom], end = args.offsets[atom + 1];
  T sum = begin < 0 || begin > end || end > args.rows ? none : 0;
  for (int64_t row = begin; sum == sum && row < end; ++row)
    sum += args.index[row] == atom ? args.grad_p[row * args.columns + c] : none;
  args.by_atom[atom * args.columns + c] = sum;
}

}  // namespace mdops
