// How the kernels of products see matrices.
#pragma once

#include <cstdint>

namespace mdops {
namespace gpu_linear {

// Number k of line n is data[n * line + k * deep]: of A lines are C's rows, of B its columns.
struct Matrix {
  const float* data;
  int64_t line, deep;
};

// Products of C's and A's coefficients, (L + 1)^2 of which stand side by side in each row, with B's matrices
// of their degrees, L + 1: how far on the next coefficient is in A and in C, and the next degree's matrix in
// B. One product has one coefficient.
struct Coefficients {
  int64_t count = 1, a = 0, b = 0, c = 0;
};

// The degree of a coefficient.
__device__ __forceinline__ int degree_of(int coefficient) {
  int degree = 0;
  while ((degree + 1) * (degree + 1) <= coefficient) ++degree;
  return degree;
}

// Of many rows of A, whose depth lies side by side.
struct RowArgs {
  int64_t rows, columns, depth;
  int wide;  // blocks side by side
  Matrix a, b;
  const float* bias;  // or null
  float* c;
  int64_t c_line;  // from one of C's rows to the next
  Coefficients coefficients;
  const float* added = nullptr;  // to C, as which it lies, by gpu_halves.h alone
};

}  // namespace gpu_linear
}  // namespace mdops
