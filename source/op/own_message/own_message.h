// Rows' updates from their own numbers, and the gradient by these; the weights are constants:
//
//   y = keep x + s f(z), z = x W + b        x (R, C), W (C, C), s and b (C,)
//   by x  keep g + (g s f'(z)) W^T
#pragma once

#include "common/activation.h"
#include "common/isa.h"
#include "common/math.h"

namespace mdops {

template <class T>
struct OwnMessageArgs {
  int64_t rows, width;  // R, C
  T keep;
  Activation activation;
  T threshold;
  const T *x, *weight, *bias, *factor;
  const T* grad;  // by y, or null
  T* out;         // y, or by x

  // z of a number of a row.
  MDOPS_HD T product(int64_t row, int64_t column) const {
    T z = bias[column];
    for (int64_t k = 0; k < width; ++k) z += x[row * width + k] * weight[k * width + column];
    return z;
  }
  template <Activation kind>
  MDOPS_HD T value(int64_t row, int64_t column) const {
    T y, slope;
    activate<kind>(product(row, column), threshold, &y, &slope);
    return keep * x[row * width + column] + factor[column] * y;
  }
  template <Activation kind>
  MDOPS_HD T by_product(int64_t row, int64_t column) const {
    T y, slope;
    activate<kind>(product(row, column), threshold, &y, &slope);
    return grad[row * width + column] * factor[column] * slope;
  }
  MDOPS_HD T gradient(int64_t row, int64_t k, const T* by_z) const {
    T sum = keep * grad[row * width + k];
    for (int64_t column = 0; column < width; ++column) sum += by_z[column] * weight[k * width + column];
    return sum;
  }
};

}  // namespace mdops
