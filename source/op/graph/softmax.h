// Softmax over the rows of each segment, per column, with both derivatives. With the sums over a
// segment s = <y, g>, t = <y, v>, q = <y v, g>:
//
//   y = exp(x - max x) / sum exp(x - max x)        dx = y (g - s)
//   of <v, dx>:  by g  y (v - t)                   by x  y (v (g - s) - g t - q + 2 s t)
#pragma once

#include <cmath>
#include <cstdint>

#include "common/math.h"

namespace mdops {

template <class T>
struct SoftmaxArgs {
  const T *x, *grad,
      *direction;          // (rows, columns); the forward pass has only x, the backward pass no direction
  const int32_t* offsets;  // (segments + 1,)
  int64_t rows, columns, segments;
  T *of_grad, *of_x;  // y or the gradient by x; the second pass: the gradients by g and by x

  MDOPS_HD bool fits(int64_t segment) const {
    return offsets[segment] >= 0 && offsets[segment] <= offsets[segment + 1] && offsets[segment + 1] <= rows;
  }
};

// Sums over a segment, each with factor exp(x - max).
template <class T>
struct SoftmaxSums {
  T one = 0, s = 0, t = 0, q = 0;

  MDOPS_HD void add(const SoftmaxArgs<T>& args, int64_t at, T max) {
    const T e = std::exp(args.x[at] - max);
    one += e;
    if (args.grad) s += e * args.grad[at];
    if (args.direction) t += e * args.direction[at], q += e * args.direction[at] * args.grad[at];
  }
  MDOPS_HD void normalize() { s /= one, t /= one, q /= one; }
  MDOPS_HD void write(const SoftmaxArgs<T>& args, int64_t at, T max) const {
    const T y = std::exp(args.x[at] - max) / one;
    if (!args.grad) {
      args.of_x[at] = y;
      return;
    }
    const T g = args.grad[at] - s;
    if (!args.direction) {
      args.of_x[at] = y * g;
      return;
    }
    const T v = args.direction[at];
    args.of_grad[at] = y * (v - t);
    args.of_x[at] = y * (v * g - args.grad[at] * t - q + T(2) * s * t);
  }
};

}  // namespace mdops
