// Rows x (N, W) to rows of length 1, with both derivatives:
//
//   y = x / max(|x|, 1e-12), and 0 for 0         dx = (g - y (y.g)) / |x|
//   of <u, dx>:  by g  (u - y (y.u)) / |x|       by x  -((u.g - 3 (y.u)(y.g)) y + (y.g) u + (y.u) g) / |x|^2
//
// Below 1e-12 the length is a constant. Rows may have several adjacent parts, (N, P W), each normalised for
// itself; tensors like y are then one for each part, (N, W).
#pragma once

#include <cmath>

#include "common/isa.h"
#include "common/math.h"

namespace mdops {

constexpr double kShortest = 1e-12;

constexpr int kMostRowParts = 3;

template <class T>
struct NormalizeArgs {
  int64_t rows, width, parts;
  const T *x, *direction,
      *grad[kMostRowParts];       // the forward pass has x alone, the backward pass no direction
  T *of_y[kMostRowParts], *of_x;  // y or the gradient by g; dx or the gradient by x
};

// 1 / |x| of a row, and whether it depends on x.
template <class T>
struct NormalizedRow {
  T inverse;
  bool changes;

  MDOPS_HD explicit NormalizedRow(T squared) {
    const T length = std::sqrt(squared), least = T(kShortest);
    changes = !(length < least);
    inverse = squared == T(0) ? T(1) : T(1) / (changes ? length : least);
  }
  // g's and x's factors in dx.
  MDOPS_HD T of_x(T x_g) const { return changes ? -x_g * inverse * inverse * inverse : T(0); }
};

// The factors of x, u and g in the gradient by x.
template <class T>
struct NormalizedCurve {
  T x, u, g;

  MDOPS_HD NormalizedCurve(const NormalizedRow<T>& row, T x_u, T x_g, T u_g) : x(0), u(0), g(0) {
    if (!row.changes) return;
    const T i = row.inverse, a = x_u * i, b = x_g * i;
    x = -(u_g - T(3) * a * b) * i * i * i, u = -b * i * i, g = -a * i * i;
  }
};

// Rows [from, to): the given arguments tell the pass.
MDOPS_DECLARE_KERNELS(void normalize_rows(const NormalizeArgs<T>& args, int64_t from, int64_t to))

}  // namespace mdops
