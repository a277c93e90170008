// Matrix products C (rows, cols) (+)= A (rows, depth) B (depth, cols), B and C in panels.
#pragma once

#include "common/panels.h"

namespace mdops::MDOPS_ISA {

// The left factor A. from(r) is what follows its first r rows; each(depth, work) calls work(column, stride)
// for its columns, rows apart by `stride`.
template <class T>
struct ByRow {
  const T* base;
  int64_t stride;

  ByRow from(int64_t row) const { return {base + row * stride, stride}; }
  template <class Work>
  MDOPS_HD void each(int64_t depth, const Work& work) const {
    for (int64_t k = 0; k < depth; ++k) work(base + k, stride);
  }
};

// A given transposed. Each column is a line of memory of its own; that of the next rows is fetched on the
// way.
template <class T>
struct ByDepth {
  const T* base;
  int64_t stride;

  ByDepth from(int64_t row) const { return {base + row, stride}; }
  template <class Work>
  MDOPS_HD void each(int64_t depth, const Work& work) const {
    for (int64_t k = 0; k < depth; ++k) {
      __builtin_prefetch(base + k * stride + 64 / sizeof(T));
      work(base + k * stride, 1);
    }
  }
};

// A in panels.
template <class T>
struct InLanes {
  Panels<T> panels;

  InLanes from(int64_t row) const { return {panels.from(row)}; }
  template <class Work>
  MDOPS_HD void each(int64_t depth, const Work& work) const {
    for (int64_t col = 0; col < depth; col += Panels<T>::kWide) {
      const int64_t width = panels.width(col), end = depth - col < width ? depth - col : width;
      const T* column = panels.panel(col);
      for (int64_t c = 0; c < end; ++c) work(column + c, width);
    }
  }
};

// Rows x Vectors vectors of C stay in registers while the depth runs. They begin with start(row, column, at),
// `at` being where they stand in C.
template <int Rows, int Vectors, class A, class T, class Start>
inline void micro(int64_t first, int64_t col, int64_t depth, const A& a, const T* b, T* c,
                  const Start& start) {
  using V = Vector<T>;
  V sum[Rows][Vectors];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v)
      sum[r][v] = start(first + r, col + v * kLanes<T>, c + (r * Vectors + v) * kLanes<T>);
  a.each(depth, [&](const T* column, int64_t stride) __attribute__((always_inline)) {
    V row[Vectors];
    for (int v = 0; v < Vectors; ++v) row[v] = vector_at(b + v * kLanes<T>);
    b += Vectors * kLanes<T>;
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < Vectors; ++v) sum[r][v] += column[r * stride] * row[v];
  });
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vectors; ++v) store(c + (r * Vectors + v) * kLanes<T>, sum[r][v]);
}

// The last rows, fewer than kRows.
template <int Vectors, int Rows = kRows - 1, class A, class T, class Start>
inline void remainder(int64_t first, int64_t rows, int64_t col, int64_t depth, const A& a, const T* b, T* c,
                      const Start& start) {
  if (rows == Rows) return micro<Rows, Vectors>(first, col, depth, a, b, c, start);
  if constexpr (Rows > 1) remainder<Vectors, Rows - 1>(first, rows, col, depth, a, b, c, start);
}

template <int Vectors, class A, class T, class Start>
inline void panel(int64_t rows, int64_t col, int64_t depth, const A& a, const T* b, T* c,
                  const Start& start) {
  int64_t r = 0;
  for (; r + kRows <= rows; r += kRows, c += kRows * Vectors * kLanes<T>)
    micro<kRows, Vectors>(r, col, depth, a.from(r), b, c, start);
  remainder<Vectors>(r, rows - r, col, depth, a.from(r), b, c, start);
}

// C = start + A B.
template <class A, class T, class Start>
inline void gemm_from(int64_t rows, int64_t depth, const A& a, const Panels<T>& b, const Panels<T>& c,
                      const Start& start) {
  for (int64_t col = 0; col < c.cols; col += Panels<T>::kWide) switch (c.width(col) / kLanes<T>) {
      case 1:
        panel<1>(rows, col, depth, a, b.panel(col), c.panel(col), start);
        break;
      case 2:
        panel<2>(rows, col, depth, a, b.panel(col), c.panel(col), start);
        break;
      default:
        panel<kPanel>(rows, col, depth, a, b.panel(col), c.panel(col), start);
    }
}

template <class A, class T>
inline void gemm(int64_t rows, int64_t depth, const A& a, const Panels<T>& b, const Panels<T>& c,
                 bool accumulate) {
  gemm_from(rows, depth, a, b, c, [=](int64_t, int64_t, const T* at) __attribute__((always_inline)) {
    return accumulate ? vector_at(at) : Vector<T>{};
  });
}

}  // namespace mdops::MDOPS_ISA
