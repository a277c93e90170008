// A matrix within an array.
#pragma once

#include <cstdint>

namespace mdops {

// Number (i, k) is data[i * line + k], or if transposed data[k * line + i].
template <class T>
struct MatrixView {
  T* data;
  int64_t rows, columns, line;
  bool transposed = false;
};

}  // namespace mdops
