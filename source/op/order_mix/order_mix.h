// Products of an edge's rows with small matrices, one for each |m|, that mix degrees. Rows of degrees up to L
// are by rising |m|: those of m = 0 (l = 0 .. L), of m = -1 (l = 1 .. L), of m = 1, of m = -2, ... An edge
// has numbers K_m[k, o], from row k to row o of a block, one matrix after the other:
//
//   mix      y[o] = sum_k K[k, o] x[k], or transposed   y[k] = sum_o K[k, o] x[o]      (E, Q), (E, R, D) to
//   (E, R, D) outer    K[k, o] = sum of x[k] y[o] over D, and over both signs of m               (E, R, D)
//   twice to (E, Q)
//
// Each is linear in both of its arguments, and the gradients of each are the others.
#pragma once

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

// R and Q follow from the largest degree L and the largest |m|.
struct OrderShape {
  int64_t edges, degree, order, columns;  // E, L, |m|, D

  MDOPS_HD int64_t size(int64_t m) const { return degree + 1 - m; }
  MDOPS_HD int64_t rows() const {
    int64_t count = size(0);
    for (int64_t m = 1; m <= order; ++m) count += 2 * size(m);
    return count;
  }
  MDOPS_HD int64_t numbers() const {
    int64_t count = 0;
    for (int64_t m = 0; m <= order; ++m) count += size(m) * size(m);
    return count;
  }
};

// `mix` has y as its result, added to `base` if there is one, `outer` the numbers.
template <class T>
struct OrderMixArgs {
  OrderShape shape;
  bool transposed;
  const T *numbers, *x;     // (E, Q), (E, R, D)
  T* y;                     // (E, R, D)
  const T* base = nullptr;  // y, or elsewhere
};
template <class T>
struct OrderOuterArgs {
  OrderShape shape;
  const T *x, *y;  // (E, R, D)
  T* numbers;      // (E, Q)
};

// An edge's rows in the column d.
template <class T>
MDOPS_HD void mix_column(const OrderMixArgs<T>& args, int64_t e, int64_t d) {
  const OrderShape& shape = args.shape;
  const int64_t begin = e * shape.rows() * shape.columns + d, step = shape.columns;
  const T* numbers = args.numbers + e * shape.numbers();
  const T* x = args.x + begin;
  T* y = args.y + begin;
  for (int64_t m = 0; m <= shape.order; ++m) {
    const int64_t size = shape.size(m), of_k = args.transposed ? 1 : size, of_o = args.transposed ? size : 1;
    for (int64_t sign = 0; sign < (m ? 2 : 1); ++sign, x += size * step, y += size * step)
      for (int64_t o = 0; o < size; ++o) {
        T sum = 0;
        if (args.base) sum = args.base[(y - args.y) + o * step];
        for (int64_t k = 0; k < size; ++k) sum += numbers[k * of_k + o * of_o] * x[k * step];
        y[o * step] = sum;
      }
    numbers += size * size;
  }
}

// One of an edge's numbers.
template <class T>
MDOPS_HD void outer_number(const OrderOuterArgs<T>& args, int64_t e, int64_t q) {
  const OrderShape& shape = args.shape;
  int64_t m = 0, row = e * shape.rows(), left = q;
  for (; left >= shape.size(m) * shape.size(m); ++m) {
    left -= shape.size(m) * shape.size(m);
    row += (m ? 2 : 1) * shape.size(m);
  }
  const int64_t size = shape.size(m), k = left / size, o = left % size;
  T sum = 0;
  for (int64_t sign = 0; sign < (m ? 2 : 1); ++sign, row += size)
    for (int64_t d = 0; d < shape.columns; ++d)
      sum += args.x[(row + k) * shape.columns + d] * args.y[(row + o) * shape.columns + d];
  args.numbers[e * shape.numbers() + q] = sum;
}

MDOPS_DECLARE_KERNELS(void mix_rows(const OrderMixArgs<T>& args, int64_t from, int64_t to))
MDOPS_DECLARE_KERNELS(void outer_numbers(const OrderOuterArgs<T>& args, int64_t from, int64_t to))

}  // namespace mdops
