// Matrices whose columns stand in the lanes of vectors, and back: for one instruction set.
//
// Columns are in panels of kPanel vectors (the last panel may have fewer), each stored row by row. The ops
// over whole models keep an atom a column: then a product with a layer's weights reads them in memory order,
// its result is the right factor of the next product, and elementwise operations run over lanes.
#pragma once

#include <utility>

#include "common/math.h"
#include "common/vectors.h"

namespace mdops::MDOPS_ISA {

#if defined(MDOPS_ISA_LEVEL_v4)
constexpr int kRows = 8, kPanel = 3;
#elif defined(MDOPS_ISA_LEVEL_v3)
constexpr int kRows = 6, kPanel = 2;
#else
constexpr int kRows = 4, kPanel = 2;
#endif

// Numbers of a row, or columns, padded to whole vectors.
template <class T>
constexpr int64_t padded(int64_t count) {
  return (count + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

template <class T>
struct Panels {
  static constexpr int64_t kWide = kPanel * kLanes<T>;

  T* base;
  int64_t rows, cols;  // cols: whole vectors
  int64_t first = 0;   // the row used as row 0

  int64_t width(int64_t col) const { return cols - col < kWide ? cols - col : kWide; }
  // Row `row` of the panel that begins with column `col`.
  T* panel(int64_t col, int64_t row = 0) const { return base + col * rows + (first + row) * width(col); }
  Panels from(int64_t row) const { return {base, rows, cols, first + row}; }

  // The place of a vector of columns: lane `c` of the panel that begins with `col`.
  struct Place {
    int64_t col, width, c;

    T* in(const Panels& panels, int64_t row) const {
      return panels.base + col * panels.rows + (panels.first + row) * width + c;
    }
    int64_t lane() const { return col + c; }
  };

  // Calls work(place) for every vector of columns.
  void each(const auto& work) const {
    for (int64_t col = 0; col < cols; col += kWide)
      for (int64_t c = 0, wide = width(col); c < wide; c += kLanes<T>) work(Place{col, wide, c});
  }
};

// Allocates pieces of a thread's scratch memory, each aligned to a cache line; with no memory it only counts.
struct Arena {
  char* base;
  int64_t used = 0;

  template <class U>
  U* take(int64_t count) {
    U* piece = base ? reinterpret_cast<U*>(base + used) : nullptr;
    used += (count * static_cast<int64_t>(sizeof(U)) + 63) / 64 * 64;
    return piece;
  }
};

// Allocates an array of `rows` rows and `lanes` lanes.
template <class T>
inline Panels<T> take_panels(Arena& arena, int64_t rows, int64_t lanes) {
  return {arena.take<T>(rows * lanes), rows, lanes};
}

// Sets rows from `row` on to zero.
template <class T>
inline void clear_from(const Panels<T>& panels, int64_t row) {
  for (int64_t col = 0; col < panels.cols; col += Panels<T>::kWide)
    for (T *p = panels.panel(col, row), *end = panels.panel(col, panels.rows); p < end; ++p) *p = 0;
}

// Copies the first `count` numbers of a row to an array.
template <class T>
inline void store_row(const Panels<T>& panels, int64_t row, int64_t count, T* to) {
  for (int64_t col = 0; col < count; col += Panels<T>::kWide) {
    const int64_t left = count - col, width = panels.width(col);
    const T* from = panels.panel(col, row);
    for (int64_t c = 0; c < width && c < left; ++c) to[col + c] = from[c];
  }
}

// One step of transposing kLanes vectors: those H apart swap the halves that are H lanes apart.
template <class T, int H, int... Lane>
inline void exchange(Vector<T>* row, std::integer_sequence<int, Lane...>) {
  constexpr int n = kLanes<T>;
  MDOPS_UNROLL
  for (int i = 0; i < n; ++i) {
    if (i & H) continue;
    const Vector<T> a = row[i], b = row[i + H];
    row[i] = MDOPS_SHUFFLE(VectorIndex<T>, a, b, (Lane & H ? n + Lane - H : Lane)...);
    row[i + H] = MDOPS_SHUFFLE(VectorIndex<T>, a, b, (Lane & H ? n + Lane : Lane + H)...);
  }
  if constexpr (H > 1) exchange<T, H / 2>(row, std::make_integer_sequence<int, n>());
}

// to[c][r] = from[r][c] of kLanes x kLanes numbers.
template <bool Streams = false, class T>
inline void transpose_tile(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
  Vector<T> row[kLanes<T>];
  MDOPS_UNROLL
  for (int r = 0; r < kLanes<T>; ++r) row[r] = vector_at(from + r * from_stride);
  exchange<T, kLanes<T> / 2>(row, std::make_integer_sequence<int, kLanes<T>>());
  MDOPS_UNROLL
  for (int r = 0; r < kLanes<T>; ++r)
    if constexpr (Streams)
      stream(to + r * to_stride, row[r]);
    else
      store(to + r * to_stride, row[r]);
}

// Copies rows of `stride`, one a column of `to`, into lanes; to.rows is in whole vectors.
template <class T>
inline void to_lanes(const T* from, int64_t stride, const Panels<T>& to) {
  to.each([&](auto place) {
    for (int64_t row = 0; row < to.rows; row += kLanes<T>)
      transpose_tile(from + place.lane() * stride + row, stride, place.in(to, row), place.width);
  });
}

// Copies `count` rows of `features` numbers, `stride` apart, into lanes; zero in the other lanes.
template <class T>
inline void rows_to_lanes(const T* from, int64_t stride, int64_t count, int64_t features,
                          const Panels<T>& to) {
  to.each([&](auto place) {
    const int64_t lane = place.lane();
    for (int64_t row = 0; row < features; row += kLanes<T>) {
      if (lane + kLanes<T> <= count && row + kLanes<T> <= features) {
        transpose_tile(from + lane * stride + row, stride, place.in(to, row), place.width);
        continue;
      }
      for (int64_t r = row; r < features && r < row + kLanes<T>; ++r)
        for (int64_t k = 0; k < kLanes<T>; ++k)
          place.in(to, r)[k] = lane + k < count ? from[(lane + k) * stride + r] : T(0);
    }
  });
}

// The reverse; with streaming stores if requested.
template <bool Streams = false, class T>
inline void lanes_to_rows(const Panels<T>& from, int64_t count, int64_t features, T* to, int64_t stride) {
  from.each([&](auto place) {
    const int64_t lane = place.lane();
    for (int64_t row = 0; row < features; row += kLanes<T>) {
      if (lane + kLanes<T> <= count && row + kLanes<T> <= features) {
        transpose_tile<Streams>(place.in(from, row), place.width, to + lane * stride + row, stride);
        continue;
      }
      for (int64_t r = row; r < features && r < row + kLanes<T>; ++r)
        for (int64_t k = 0; k < kLanes<T> && lane + k < count; ++k)
          to[(lane + k) * stride + r] = place.in(from, r)[k];
    }
  });
}

// The reverse of `to_lanes`.
template <class T>
inline void from_lanes(const Panels<T>& from, T* to, int64_t stride) {
  from.each([&](auto place) {
    for (int64_t row = 0; row < from.rows; row += kLanes<T>)
      transpose_tile(place.in(from, row), place.width, to + place.lane() * stride + row, stride);
  });
}

// Swaps rows and columns.
template <class T>
inline void transpose(const Panels<T>& from, const Panels<T>& to) {
  from.each([&](auto place) {
    for (int64_t col = 0; col < to.cols; col += Panels<T>::kWide)
      for (int64_t c = 0, wide = to.width(col); c < wide; c += kLanes<T>)
        transpose_tile(place.in(from, col + c), place.width, to.panel(col, place.lane()) + c, wide);
  });
}

}  // namespace mdops::MDOPS_ISA
