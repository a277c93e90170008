// Matrix products C (rows, cols) (+)= A (rows, depth) B (depth, cols), B and C in panels.
#pragma once

#include "common/panels.h"

namespace mdops::MDOPS_ISA {

// The left factor A. from(r) skips its first r rows; each(depth, work) calls work(column, stride) for its
// columns, rows apart by `stride`.
template <class T>
struct ByRow {
  const T* base;
  int64_t stride;

  ByRow from(int64_t row) const { return {base + row * stride, stride}; }
  MDOPS_HD void each(int64_t depth, const auto& work) const {
    for (int64_t k = 0; k < depth; ++k) work(base + k, stride);
  }
};

// A given transposed. Each column is a separate line of memory; those of the next rows are prefetched.
template <class T>
struct ByDepth {
  const T* base;
  int64_t stride;

  ByDepth from(int64_t row) const { return {base + row, stride}; }
  MDOPS_HD void each(int64_t depth, const auto& work) const {
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
  MDOPS_HD void each(int64_t depth, const auto& work) const {
    for (int64_t col = 0; col < depth; col += Panels<T>::kWide) {
      const int64_t width = panels.width(col), end = depth - col < width ? depth - col : width;
      const T* column = panels.panel(col);
      for (int64_t c = 0; c < end; ++c) work(column + c, width);
    }
  }
};

// Rows x Vectors vectors of the product stay in registers over the depth. They begin with start(row, column,
// place) and end with end(row, column, place, sums), where `place` is their place in a panel.
template <int Rows, int Vectors, class A, class T, class Start, class End>
inline void micro(int64_t first, int64_t col, int64_t depth, const A& a, const T* b, const Start& start,
                  const End& end) {
  using V = Vector<T>;
  const auto each = [&](const auto& work) __attribute__((always_inline)) {
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < Vectors; ++v)
        work(r, v, first + r, col + v * kLanes<T>, ((first + r) * Vectors + v) * kLanes<T>);
  };
  V sum[Rows][Vectors];
  each([&](int r, int v, int64_t row, int64_t column, int64_t place)
           __attribute__((always_inline)) { sum[r][v] = start(row, column, place); });
  a.each(depth, [&](const T* column, int64_t stride) __attribute__((always_inline)) {
    V row[Vectors];
    for (int v = 0; v < Vectors; ++v) row[v] = vector_at(b + v * kLanes<T>);
    b += Vectors * kLanes<T>;
    for (int r = 0; r < Rows; ++r)
      for (int v = 0; v < Vectors; ++v) sum[r][v] += column[r * stride] * row[v];
  });
  each([&](int r, int v, int64_t row, int64_t column, int64_t place)
           __attribute__((always_inline)) { end(row, column, place, sum[r][v]); });
}

// The last rows, fewer than kRows.
template <int Vectors, int Rows = kRows - 1, class A, class T, class Start, class End>
inline void remainder(int64_t first, int64_t rows, int64_t col, int64_t depth, const A& a, const T* b,
                      const Start& start, const End& end) {
  if (rows == Rows) return micro<Rows, Vectors>(first, col, depth, a, b, start, end);
  if constexpr (Rows > 1) remainder<Vectors, Rows - 1>(first, rows, col, depth, a, b, start, end);
}

template <int Vectors, class A, class T, class Start, class End>
inline void panel(int64_t rows, int64_t col, int64_t depth, const A& a, const T* b, const Start& start,
                  const End& end) {
  int64_t r = 0;
  if constexpr (Vectors == 1)  // as many sums as for two vectors
    for (; r + 2 * kRows <= rows; r += 2 * kRows)
      micro<2 * kRows, 1>(r, col, depth, a.from(r), b, start, end);
  for (; r + kRows <= rows; r += kRows) micro<kRows, Vectors>(r, col, depth, a.from(r), b, start, end);
  remainder<Vectors>(r, rows - r, col, depth, a.from(r), b, start, end);
}

// The panel of B that begins with column `col`, or only `lanes` of it.
template <class A, class T, class Start, class End>
inline void panel_of(int64_t rows, int64_t col, int64_t lanes, int64_t depth, const A& a, const Panels<T>& b,
                     const Start& start, const End& end) {
  switch (lanes / kLanes<T>) {
    case 1:
      return panel<1>(rows, col, depth, a, b.panel(col), start, end);
    case 2:
      return panel<2>(rows, col, depth, a, b.panel(col), start, end);
    default:
      return panel<kPanel>(rows, col, depth, a, b.panel(col), start, end);
  }
}

// C = start + A B, where start(row, column, at) knows the vector's place in C.
template <class A, class T, class Start>
inline void gemm_from(int64_t rows, int64_t depth, const A& a, const Panels<T>& b, const Panels<T>& c,
                      const Start& start) {
  for (int64_t col = 0; col < c.cols; col += Panels<T>::kWide) {
    T* const to = c.panel(col);
    panel_of(
        rows, col, c.width(col), depth, a, b,
        [&](int64_t row, int64_t column, int64_t place)
            __attribute__((always_inline)) { return start(row, column, to + place); },
        [to](int64_t, int64_t, int64_t place, const Vector<T>& sums)
            __attribute__((always_inline)) { store(to + place, sums); });
  }
}

// Calls end(row, column, vector) for the vectors of A B, without storing it.
template <class A, class T, class End>
inline void gemm_to(int64_t rows, int64_t depth, const A& a, const Panels<T>& b, const End& end) {
  for (int64_t col = 0; col < b.cols; col += Panels<T>::kWide)
    panel_of(
        rows, col, b.width(col), depth, a, b,
        [](int64_t, int64_t, int64_t) __attribute__((always_inline)) { return Vector<T>{}; },
        [&](int64_t row, int64_t column, int64_t, const Vector<T>& sums)
            __attribute__((always_inline)) { end(row, column, sums); });
}

template <class A, class T>
inline void gemm(int64_t rows, int64_t depth, const A& a, const Panels<T>& b, const Panels<T>& c,
                 bool accumulate) {
  gemm_from(rows, depth, a, b, c, [=](int64_t, int64_t, const T* at) __attribute__((always_inline)) {
    return accumulate ? vector_at(at) : Vector<T>{};
  });
}

}  // namespace mdops::MDOPS_ISA
