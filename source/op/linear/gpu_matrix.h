// The matrices of product kernels.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops::gpu_linear {

// Number k of line n is data[n * line + k * deep]. Lines of A are C's rows, lines of B its columns.
struct Matrix {
  const float* data;
  int64_t line, deep;
};

// Products of A's coefficients, (L + 1)^2 side by side in each row, with B's L + 1 matrices by degree: the
// strides of coefficients in A and C, and of degrees' matrices in B. A single product has one coefficient.
struct Coefficients {
  int64_t count = 1, a = 0, b = 0, c = 0;
};

// The degree of a coefficient.
MDOPS_D int degree_of(int coefficient) {
  int degree = 0;
  while ((degree + 1) * (degree + 1) <= coefficient) ++degree;
  return degree;
}

// For many rows of A with contiguous depth.
struct RowArgs {
  int64_t rows, columns, depth;
  int wide;  // blocks side by side
  Matrix a, b;
  const float* bias;  // or null
  float* c;
  int64_t c_line;  // stride of C's rows
  Coefficients coefficients;
  const float* added = nullptr;  // to C, in its layout; only for gpu_halves.h
};

}  // namespace mdops::gpu_linear
