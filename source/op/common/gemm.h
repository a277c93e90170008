// Matrix products with a packed right factor, for blocks of rows that stay in cache.
//
// C (rows, cols) (+)= A (rows, depth) B (depth, cols).  B is packed once: column panels of kPanel vectors
// (the last panel may have fewer), each stored depth by depth, columns padded with zeros to whole vectors. C
// and A have row strides; C must hold the padded columns. Compiled once for each instruction set.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {
namespace MDOPS_ISA {

#if defined(MDOPS_ISA_LEVEL_v4)
constexpr int kVectorBytes = 64, kRows = 8, kPanel = 3;
#elif defined(MDOPS_ISA_LEVEL_v3)
constexpr int kVectorBytes = 32, kRows = 6, kPanel = 2;
#else
constexpr int kVectorBytes = 16, kRows = 4, kPanel = 2;
#endif

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(kVectorBytes), aligned(sizeof(T)), may_alias));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
constexpr int kLanes = kVectorBytes / sizeof(T);

// Columns padded to whole vectors.
template <class T>
constexpr int64_t padded(int64_t cols) {
  return (cols + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

// Packs row k of B: its numbers, and those of a second row added to them if there is one.
template <class T>
inline void pack_row(int64_t depth, int64_t cols, int64_t k, const T* row, const T* second, T* packed) {
  const int64_t total = padded<T>(cols), wide = kPanel * kLanes<T>;
  for (int64_t col = 0; col < total; col += wide) {
    const int64_t width = total - col < wide ? total - col : wide;
    T* out = packed + col * depth + k * width;
    for (int64_t c = 0; c < width; ++c)
      out[c] = col + c < cols ? row[col + c] + (second ? second[col + c] : T(0)) : T(0);
  }
}

// The same for column `col` of B; the last one brings the padding.
template <class T>
inline void pack_column(int64_t depth, int64_t cols, int64_t col, const T* column, const T* second,
                        T* packed) {
  const int64_t total = padded<T>(cols), wide = kPanel * kLanes<T>, first = col / wide * wide;
  const int64_t width = total - first < wide ? total - first : wide;
  T* out = packed + first * depth + (col - first);
  for (int64_t k = 0; k < depth; ++k) out[k * width] = column[k] + (second ? second[k] : T(0));
  for (int64_t c = col + 1; col + 1 == cols && c < total; ++c)
    for (int64_t k = 0; k < depth; ++k) out[k * width + c - col] = 0;
}

// Where an element of the left factor A stands: row by row, or, for A given transposed, depth by depth.
enum class Left { by_row, by_depth };

// Rows x Vectors vectors of C stay in registers while the depth runs.
template <class T, Left left, int Rows, int Vectors>
inline void micro(int64_t depth, const T* a, int64_t lda, const T* b, T* c, int64_t ldc, bool accumulate) {
  using V = Vector<T>;
  V sum[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      sum[r][v] = accumulate ? *reinterpret_cast<const V*>(c + r * ldc + v * kLanes<T>) : V{};
  for (int64_t k = 0; k < depth; ++k) {
    V column[Vectors];
    for (int v = 0; v < Vectors; ++v)
      column[v] = *reinterpret_cast<const V*>(b + (k * Vectors + v) * kLanes<T>);
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < Vectors; ++v)
        sum[r][v] += a[left == Left::by_row ? r * lda + k : k * lda + r] * column[v];
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) *reinterpret_cast<V*>(c + r * ldc + v * kLanes<T>) = sum[r][v];
}

// How many groups of kRows - 2 rows, beside those of kRows, an even number of rows is made of; -1 if it is
// not.
constexpr int64_t small_groups(int64_t rows) {
  const int64_t over = rows % kRows, small = over ? (kRows - over) / 2 : 0;
  return small * (kRows - 2) <= rows ? small : -1;
}

// The next number of rows that goes without remainder.
constexpr int64_t padded_rows(int64_t rows) {
  rows += rows % 2;
  while (small_groups(rows) < 0) rows += 2;
  return rows;
}

template <class T, Left left, int Vectors>
inline void panel(int64_t rows, int64_t depth, const T* a, int64_t lda, const T* b, T* c, int64_t ldc,
                  bool accumulate) {
  const int64_t a_step = left == Left::by_row ? lda : 1, small = small_groups(rows) * (kRows - 2);
  int64_t r = 0;
  for (; r < rows - small; r += kRows)
    micro<T, left, kRows, Vectors>(depth, a + r * a_step, lda, b, c + r * ldc, ldc, accumulate);
  for (; r < rows; r += kRows - 2)
    micro<T, left, kRows - 2, Vectors>(depth, a + r * a_step, lda, b, c + r * ldc, ldc, accumulate);
}

// `rows` is one of `padded_rows`.
template <class T, Left left = Left::by_row>
inline void gemm(int64_t rows, int64_t depth, int64_t cols, const T* a, int64_t lda, const T* packed, T* c,
                 int64_t ldc, bool accumulate) {
  const int64_t total = padded<T>(cols) / kLanes<T>;
  for (int64_t v = 0; v < total; v += kPanel) {
    const T* b = packed + v * kLanes<T> * depth;
    T* out = c + v * kLanes<T>;
    switch (total - v < kPanel ? total - v : kPanel) {
      case 1:
        panel<T, left, 1>(rows, depth, a, lda, b, out, ldc, accumulate);
        break;
      case 2:
        panel<T, left, 2>(rows, depth, a, lda, b, out, ldc, accumulate);
        break;
      default:
        panel<T, left, kPanel>(rows, depth, a, lda, b, out, ldc, accumulate);
        break;
    }
  }
}

}  // namespace MDOPS_ISA
}  // namespace mdops
