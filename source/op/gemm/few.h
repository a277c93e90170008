// Products C (+)= A B with few columns of B, for one instruction set. With a column a lane most lanes would
// be empty, so here lanes hold rows of A. B and C are still panels of one vector of columns.
#pragma once

#include "gemm/product.h"

namespace mdops::MDOPS_ISA {

// More columns fill a vector better.
template <class T>
constexpr int kMostFew = kLanes<T> / 2;

// Writes a line of a panel with `Columns` columns, then zeros.
template <int Columns, class T>
inline void put_few(const T* sums, int64_t apart, T* line, bool accumulate) {
  if (!accumulate) store(line, Vector<T>{});
  for (int c = 0; c < Columns; ++c) line[c] += sums[c * apart];
}

// `Vectors` vectors of rows.
template <int Columns, int Vectors, class T>
inline void few_rows(int64_t first, int64_t depth, const ByDepth<T>& a, const T* b, T* c, bool accumulate) {
  using V = Vector<T>;
  V sum[Columns][Vectors] = {};
  const T* from = a.base + first;
  for (int64_t k = 0; k < depth; ++k, from += a.stride, b += kLanes<T>) {
    __builtin_prefetch(from + 4 * a.stride);
    V row[Vectors];
    for (int v = 0; v < Vectors; ++v) row[v] = vector_at(from + v * kLanes<T>);
    for (int n = 0; n < Columns; ++n)
      for (int v = 0; v < Vectors; ++v) sum[n][v] += b[n] * row[v];
  }
  T sums[Columns * Vectors * kLanes<T>];
  for (int n = 0; n < Columns; ++n)
    for (int v = 0; v < Vectors; ++v) store(sums + (n * Vectors + v) * kLanes<T>, sum[n][v]);
  for (int64_t r = 0; r < Vectors * kLanes<T>; ++r)
    put_few<Columns>(sums + r, Vectors * kLanes<T>, c + (first + r) * kLanes<T>, accumulate);
}

template <int Columns, class T>
inline void few(int64_t rows, int64_t depth, const ByDepth<T>& a, const T* b, T* c, bool accumulate) {
  constexpr int kVectors = Columns > 4 ? 2 : 4;  // sums stay in registers
  int64_t r = 0;
  for (; r + kVectors * kLanes<T> <= rows; r += kVectors * kLanes<T>)
    few_rows<Columns, kVectors>(r, depth, a, b, c, accumulate);
  for (; r + kLanes<T> <= rows; r += kLanes<T>) few_rows<Columns, 1>(r, depth, a, b, c, accumulate);
  for (; r < rows; ++r) {
    T sums[Columns] = {};
    for (int64_t k = 0; k < depth; ++k)
      for (int n = 0; n < Columns; ++n) sums[n] += a.base[k * a.stride + r] * b[k * kLanes<T> + n];
    put_few<Columns>(sums, 1, c + r * kLanes<T>, accumulate);
  }
}

// The sum of the lanes of each of kLanes vectors, by halves: two vectors H apart become one.
template <class T, int H, int... Lane>
inline Vector<T> sums_of(Vector<T>* row, std::integer_sequence<int, Lane...>) {
  constexpr int n = kLanes<T>;
  MDOPS_UNROLL
  for (int i = 0; i < H; ++i) {
    const Vector<T> a = row[i], b = row[i + H];
    row[i] = MDOPS_SHUFFLE(VectorIndex<T>, a, b, (Lane & H ? n + Lane - H : Lane)...) +
             MDOPS_SHUFFLE(VectorIndex<T>, a, b, (Lane & H ? n + Lane : Lane + H)...);
  }
  if constexpr (H > 1) return sums_of<T, H / 2>(row, std::make_integer_sequence<int, n>());
  return row[0];
}

// For `depth` numbers of each row, a piece of whole vectors or the last one: `columns` has those of each
// column, padded with zeros.
template <int Columns, class T>
inline void few_rows(int64_t rows, int64_t depth, const ByRow<T>& a, const T* columns, int64_t apart, T* c,
                     bool accumulate) {
  using V = Vector<T>;
  constexpr int kTogether = kLanes<T> / Columns;  // as many sums as lanes
  const int64_t whole = depth / kLanes<T> * kLanes<T>;
  for (int64_t first = 0; first < rows; first += kTogether) {
    V sum[kLanes<T>] = {};
    const T* row[kTogether];
    for (int r = 0; r < kTogether; ++r)
      row[r] = a.base + (first + r < rows ? first + r : rows - 1) * a.stride;
    const auto add = [&](int64_t k, const auto& at) __attribute__((always_inline)) {
      V column[Columns];
      for (int n = 0; n < Columns; ++n) column[n] = vector_at(columns + n * apart + k);
      for (int r = 0; r < kTogether; ++r) {
        const V numbers = at(row[r] + k);
        for (int n = 0; n < Columns; ++n) sum[r * Columns + n] += numbers * column[n];
      }
    };
    for (int64_t k = 0; k < whole; k += kLanes<T>)
      add(k, [](const T* p) __attribute__((always_inline)) { return vector_at(p); });
    if (whole < depth)
      add(whole, [&](const T* p) {
        T numbers[kLanes<T>] = {};
        for (int64_t k = 0; k < depth - whole; ++k) numbers[k] = p[k];
        return vector_at(numbers);
      });
    T sums[kLanes<T>];
    store(sums, sums_of<T, kLanes<T> / 2>(sum, std::make_integer_sequence<int, kLanes<T>>()));
    for (int64_t r = 0; r < kTogether && first + r < rows; ++r)
      put_few<Columns>(sums + r * Columns, 1, c + (first + r) * kLanes<T>, accumulate);
  }
}

template <int Columns, class T>
inline void few(int64_t rows, int64_t depth, const ByRow<T>& a, const T* b, T* c, bool accumulate) {
  constexpr int64_t kPiece = 256;  // of the depth
  T columns[Columns * kPiece];
  for (int64_t from = 0; from < depth; from += kPiece, accumulate = true) {
    const int64_t piece = depth - from < kPiece ? depth - from : kPiece;
    for (int n = 0; n < Columns; ++n)
      for (int64_t k = 0; k < padded<T>(piece); ++k)
        columns[n * kPiece + k] = k < piece ? b[(from + k) * kLanes<T> + n] : T(0);
    few_rows<Columns>(rows, piece, ByRow<T>{a.base + from, a.stride}, columns, kPiece, c, accumulate);
  }
}

// As `gemm`, if only the first `columns` are needed, at most kMostFew.
template <class A, class T>
inline void gemm_few(int64_t columns, int64_t rows, int64_t depth, const A& a, const Panels<T>& b,
                     const Panels<T>& c, bool accumulate) {
  const T* const from = b.panel(0);
  T* const to = c.panel(0);
  if (columns == 1) return few<1>(rows, depth, a, from, to, accumulate);
  if (columns == 2 || kMostFew<T> == 2) return few<2>(rows, depth, a, from, to, accumulate);
  if constexpr (kMostFew<T> >= 4) {
    if (columns <= 4 || kMostFew<T> == 4) return few<4>(rows, depth, a, from, to, accumulate);
    if constexpr (kMostFew<T> >= 8) few<8>(rows, depth, a, from, to, accumulate);
  }
}

}  // namespace mdops::MDOPS_ISA
