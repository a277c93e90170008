// Sums over the depth of Rows rows of A and a panel of B, in integers. Included once for each multiplication
// method of an instruction set (cpu_kernel.cpp): MDOPS_DOT is its namespace, with `dot`, and MDOPS_DOT_TARGET
// the compiler's option for it. No `#pragma once`.

namespace MDOPS_DOT {

// A word holds kDeep numbers that follow each other in the depth. a: rows `stride` words apart; b: words by
// depth, then column; tile: rows of kDotColumns.
template <int Rows>
MDOPS_DOT_TARGET inline void sums(int64_t words, const int32_t* a, int64_t stride, const int32_t* b,
                                  int32_t* tile) {
  Ints sum[Rows][kDotVectors];
  MDOPS_UNROLL
  for (int r = 0; r < Rows; ++r) MDOPS_UNROLL
  for (int v = 0; v < kDotVectors; ++v) sum[r][v] = Ints{};
  for (int64_t k = 0; k < words; ++k, ++a, b += kDotColumns) {
    Ints column[kDotVectors];
    MDOPS_UNROLL
    for (int v = 0; v < kDotVectors; ++v) column[v] = load<Ints>(b + v * kIntLanes);
    MDOPS_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const Ints row = Ints{} + load<int32_t>(a + r * stride);
      MDOPS_UNROLL
      for (int v = 0; v < kDotVectors; ++v) sum[r][v] = dot(sum[r][v], column[v], row);
    }
  }
  MDOPS_UNROLL
  for (int r = 0; r < Rows; ++r) MDOPS_UNROLL
  for (int v = 0; v < kDotVectors; ++v) store(tile + r * kDotColumns + v * kIntLanes, sum[r][v]);
}

// The same for at most kDotRows rows.
template <int Rows = kDotRows>
MDOPS_DOT_TARGET inline void sums_of(int rows, int64_t words, const int32_t* a, int64_t stride,
                                     const int32_t* b, int32_t* tile) {
  if (rows == Rows) return sums<Rows>(words, a, stride, b, tile);
  if constexpr (Rows > 1) sums_of<Rows - 1>(rows, words, a, stride, b, tile);
}

}  // namespace MDOPS_DOT
