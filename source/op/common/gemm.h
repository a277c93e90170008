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

// Packs B, given element by element: element(k, col).
template <class T, class Element>
inline void pack(int64_t depth, int64_t cols, T* packed, const Element& element) {
  const int64_t total = padded<T>(cols), wide = kPanel * kLanes<T>;
  for (int64_t col = 0; col < total; col += wide) {
    const int64_t width = total - col < wide ? total - col : wide;
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t c = 0; c < width; ++c) *packed++ = col + c < cols ? element(k, col + c) : T(0);
  }
}

// Rows x Vectors vectors of C stay in registers while the depth runs.
template <class T, int Rows, int Vectors>
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
      for (int v = 0; v < Vectors; ++v) sum[r][v] += a[r * lda + k] * column[v];
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) *reinterpret_cast<V*>(c + r * ldc + v * kLanes<T>) = sum[r][v];
}

template <class T, int Vectors>
inline void panel(int64_t rows, int64_t depth, const T* a, int64_t lda, const T* b, T* c, int64_t ldc,
                  bool accumulate) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows)
    micro<T, kRows, Vectors>(depth, a + r * lda, lda, b, c + r * ldc, ldc, accumulate);
  for (; r < rows; ++r) micro<T, 1, Vectors>(depth, a + r * lda, lda, b, c + r * ldc, ldc, accumulate);
}

template <class T>
inline void gemm(int64_t rows, int64_t depth, int64_t cols, const T* a, int64_t lda, const T* packed, T* c,
                 int64_t ldc, bool accumulate) {
  const int64_t total = padded<T>(cols) / kLanes<T>;
  for (int64_t v = 0; v < total; v += kPanel) {
    const T* b = packed + v * kLanes<T> * depth;
    T* out = c + v * kLanes<T>;
    switch (total - v < kPanel ? total - v : kPanel) {
      case 1:
        panel<T, 1>(rows, depth, a, lda, b, out, ldc, accumulate);
        break;
      case 2:
        panel<T, 2>(rows, depth, a, lda, b, out, ldc, accumulate);
        break;
      default:
        panel<T, kPanel>(rows, depth, a, lda, b, out, ldc, accumulate);
        break;
    }
  }
}

}  // namespace MDOPS_ISA
}  // namespace mdops
