// The products of bf16.h, compiled once for AMX (with MDOPS_AMX) and once for AVX512-BF16: what no compiler
// makes of a loop. The way of B is the same.
#if defined(__x86_64__)

#include "gemm/bf16.h"

#include <immintrin.h>

namespace mdops {
namespace MDOPS_ISA {

namespace {

constexpr int kTileBytes = kBf16Tile * 2;

// The vector of lanes `lane` of a row.
struct Lanes {
  float* base;
  int64_t stride;  // from row to row

  Lanes(const Bf16Panels& of, int64_t lane) {
    const int64_t col = lane / of.panel * of.panel;
    stride = of.cols - col < of.panel ? of.cols - col : of.panel;
    base = of.base + col * of.rows + of.first * stride + (lane - col);
  }
  Lanes from(int64_t row) const {
    Lanes rest = *this;
    rest.base += row * stride;
    return rest;
  }
};

inline __m512i rounded(__m512 x) {
  // Of two vectors the instruction makes one of bfloat16 numbers; here each in the upper half of its place.
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x))), 16);
}

inline __m512i side_by_side(__m512i even, __m512i odd) {
  return _mm512_or_si512(_mm512_srli_epi32(even, 16), odd);
}

// Sixteen lanes of B, split, to [k / 32][part][k % 32 / 2][lane][2].
inline void split_lanes(const Lanes& from, int64_t depth, int parts, uint16_t* to) {
  for (int64_t k = 0; k < depth; k += kBf16Depth, to += kBf16Tile * parts)
    for (int pair = 0; pair < kBf16Depth / 2; ++pair) {
      const int64_t row = k + 2 * pair;
      const __m512 x0 = row < depth ? _mm512_loadu_ps(from.base + row * from.stride) : _mm512_setzero_ps();
      const __m512 x1 =
          row + 1 < depth ? _mm512_loadu_ps(from.base + (row + 1) * from.stride) : _mm512_setzero_ps();
      const __m512i high0 = rounded(x0), high1 = rounded(x1);
      _mm512_store_si512(to + pair * 32, side_by_side(high0, high1));
      if (parts == 1) continue;
      const __m512i low0 = rounded(_mm512_sub_ps(x0, _mm512_castsi512_ps(high0)));
      const __m512i low1 = rounded(_mm512_sub_ps(x1, _mm512_castsi512_ps(high1)));
      _mm512_store_si512(to + kBf16Tile + pair * 32, side_by_side(low0, low1));
    }
}

// Where 16 rows of C stand, from `row` on: in C, or beside it, as rows beyond the last one have no place
// there.
class Sums {
 public:
  float* at;
  int64_t stride;

  Sums(const Lanes& c, int64_t row, int64_t rows, bool accumulate)
      : at(c.base + row * c.stride), stride(c.stride), c_(at), left_(rows - row), c_stride_(stride) {
    if (left_ >= kBf16Rows) return;
    at = &beside_[0][0], stride = kBf16Lanes;
    if (accumulate) copy(c_, c_stride_, at, stride);
  }
  void finish() const {
    if (left_ < kBf16Rows) copy(at, stride, c_, c_stride_);
  }

 private:
  void copy(const float* from, int64_t from_stride, float* to, int64_t to_stride) const {
    for (int64_t r = 0; r < left_; ++r)
      _mm512_storeu_ps(to + r * to_stride, _mm512_loadu_ps(from + r * from_stride));
  }

  float* c_;
  int64_t left_, c_stride_;
  alignas(64) float beside_[kBf16Rows][kBf16Lanes];
};

#if defined(MDOPS_AMX)

struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  TileShapes() {
    for (int t = 0; t < 8; ++t) bytes[t] = 64, rows[t] = 16;
  }
};

// 32 rows of A (or 16) with 32 lanes of B (or 16): tiles 0 to 3 are the sums, 4 and 5 A, 6 and 7 B. High
// times low, low times high, then high times high.
template <bool SecondRows, bool SecondLanes>
inline void multiply_tiles(const uint16_t* a, int64_t a_next, const uint16_t* b, int64_t b_next,
                           int64_t steps, int parts, Sums* const* sums, bool accumulate) {
  if (accumulate) {
    _tile_loadd(0, sums[0]->at, 4 * sums[0]->stride);
    if constexpr (SecondLanes) _tile_loadd(1, sums[1]->at, 4 * sums[1]->stride);
    if constexpr (SecondRows) _tile_loadd(2, sums[2]->at, 4 * sums[2]->stride);
    if constexpr (SecondRows && SecondLanes) _tile_loadd(3, sums[3]->at, 4 * sums[3]->stride);
  } else {
    _tile_zero(0);
    if constexpr (SecondLanes) _tile_zero(1);
    if constexpr (SecondRows) _tile_zero(2);
    if constexpr (SecondRows && SecondLanes) _tile_zero(3);
  }
  const auto products = [] {
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (SecondLanes) _tile_dpbf16ps(1, 4, 7);
    if constexpr (SecondRows) _tile_dpbf16ps(2, 5, 6);
    if constexpr (SecondRows && SecondLanes) _tile_dpbf16ps(3, 5, 7);
  };
  const auto load_a = [&](const uint16_t* from) {
    _tile_loadd(4, from, 64);
    if constexpr (SecondRows) _tile_loadd(5, from + a_next, 64);
  };
  const auto load_b = [&](const uint16_t* from) {
    _tile_loadd(6, from, 64);
    if constexpr (SecondLanes) _tile_loadd(7, from + b_next, 64);
  };
  for (int64_t step = 0; step < steps; ++step, a += kBf16Tile * parts, b += kBf16Tile * parts) {
    load_a(a);
    if (parts == 2) {
      load_b(b + kBf16Tile);
      products();
      load_b(b);
      products();
      load_a(a + kBf16Tile);
      products();
    } else {
      load_b(b);
      products();
    }
  }
  _tile_stored(0, sums[0]->at, 4 * sums[0]->stride);
  if constexpr (SecondLanes) _tile_stored(1, sums[1]->at, 4 * sums[1]->stride);
  if constexpr (SecondRows) _tile_stored(2, sums[2]->at, 4 * sums[2]->stride);
  if constexpr (SecondRows && SecondLanes) _tile_stored(3, sums[3]->at, 4 * sums[3]->stride);
}

class Units {
 public:
  Units() { _tile_loadconfig(&shapes_); }
  ~Units() { _tile_release(); }

  // 16 rows of A or 32 with 16 lanes of B or 32, into sums[2 * (second rows) + (second lanes)].
  static void multiply(const uint16_t* a, int64_t a_next, const uint16_t* b, int64_t b_next, int64_t steps,
                       int parts, Sums* const* sums, bool accumulate) {
    const auto run = [&]<bool SecondRows, bool SecondLanes>() {
      multiply_tiles<SecondRows, SecondLanes>(a, a_next, b, b_next, steps, parts, sums, accumulate);
    };
    if (sums[3])
      run.template operator()<true, true>();
    else if (sums[2])
      run.template operator()<true, false>();
    else if (sums[1])
      run.template operator()<false, true>();
    else
      run.template operator()<false, false>();
  }

 private:
  TileShapes shapes_;
};

#else

// Eight rows of A with one or two vectors of B in registers.
template <bool SecondLanes>
inline void multiply_rows(const uint16_t* a, const uint16_t* b, int64_t b_next, int64_t steps, int parts,
                          int first, Sums* const* sums, bool accumulate) {
  constexpr int rows = 8;
  const auto place = [&](int lanes, int r) { return sums[lanes]->at + (first + r) * sums[lanes]->stride; };
  __m512 sum[2][rows];
  for (int r = 0; r < rows; ++r) {
    sum[0][r] = accumulate ? _mm512_loadu_ps(place(0, r)) : _mm512_setzero_ps();
    if constexpr (SecondLanes) sum[1][r] = accumulate ? _mm512_loadu_ps(place(1, r)) : _mm512_setzero_ps();
  }
  const auto products = [&](const uint16_t* left, const uint16_t* right) {
    for (int pair = 0; pair < kBf16Depth / 2; ++pair) {
      const __m512bh b0 = reinterpret_cast<__m512bh>(_mm512_load_si512(right + 32 * pair));
      const __m512bh b1 =
          SecondLanes ? reinterpret_cast<__m512bh>(_mm512_load_si512(right + b_next + 32 * pair)) : b0;
      for (int r = 0; r < rows; ++r) {
        int both;
        __builtin_memcpy(&both, left + (first + r) * kBf16Depth + 2 * pair, sizeof(both));
        const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
        sum[0][r] = _mm512_dpbf16_ps(sum[0][r], x, b0);
        if constexpr (SecondLanes) sum[1][r] = _mm512_dpbf16_ps(sum[1][r], x, b1);
      }
    }
  };
  for (int64_t step = 0; step < steps; ++step, a += kBf16Tile * parts, b += kBf16Tile * parts) {
    if (parts == 2) {
      products(a, b + kBf16Tile);
      products(a + kBf16Tile, b);
    }
    products(a, b);
  }
  for (int r = 0; r < rows; ++r) {
    _mm512_storeu_ps(place(0, r), sum[0][r]);
    if constexpr (SecondLanes) _mm512_storeu_ps(place(1, r), sum[1][r]);
  }
}

struct Units {
  static void multiply(const uint16_t* a, int64_t a_next, const uint16_t* b, int64_t b_next, int64_t steps,
                       int parts, Sums* const* sums, bool accumulate) {
    for (int tile = 0; tile < (sums[2] ? 2 : 1); ++tile)
      for (int first = 0; first < kBf16Rows; first += 8) {
        const auto run = sums[1] ? multiply_rows<true> : multiply_rows<false>;
        run(a + tile * a_next, b, b_next, steps, parts, first, sums + 2 * tile, accumulate);
      }
  }
};

#endif

constexpr int64_t kMostAtOnce = 512;  // of the depth: B's parts of 32 lanes are 128 KiB then

}  // namespace

void multiply_bf16(const uint16_t* a, int parts, int64_t rows, int64_t depth, const Bf16Panels& b,
                   const Bf16Panels& c, bool accumulate) {
  alignas(64) static thread_local uint16_t split[2 * kMostAtOnce * kBf16Lanes * 2];
  const int64_t all_steps = (depth + kBf16Depth - 1) / kBf16Depth, a_next = all_steps * kBf16Tile * parts;
  const Units units;
  for (int64_t lane = 0; lane < c.cols; lane += 2 * kBf16Lanes) {
    const bool two_lanes = lane + kBf16Lanes < c.cols;
    const int64_t second_lane = two_lanes ? lane + kBf16Lanes : lane;
    const Lanes b0(b, lane), b1(b, second_lane), c0(c, lane), c1(c, second_lane);
    for (int64_t from = 0; from < depth; from += kMostAtOnce) {
      const int64_t deep = depth - from < kMostAtOnce ? depth - from : kMostAtOnce;
      const int64_t steps = (deep + kBf16Depth - 1) / kBf16Depth, b_next = steps * kBf16Tile * parts;
      split_lanes(b0.from(from), deep, parts, split);
      if (two_lanes) split_lanes(b1.from(from), deep, parts, split + b_next);
      const uint16_t* left = a + from / kBf16Depth * kBf16Tile * parts;
      const bool add = accumulate || from > 0;
      for (int64_t row = 0; row < rows; row += 2 * kBf16Rows, left += 2 * a_next) {
        const bool two_rows = row + kBf16Rows < rows;
        const int64_t second = two_rows ? row + kBf16Rows : row;
        Sums s00(c0, row, rows, add), s01(c1, row, rows, add), s10(c0, second, rows, add),
            s11(c1, second, rows, add);
        Sums* const sums[4] = {&s00, two_lanes ? &s01 : nullptr, two_rows ? &s10 : nullptr,
                               two_rows && two_lanes ? &s11 : nullptr};
        units.multiply(left, a_next, split, b_next, steps, parts, sums, add);
        for (const Sums* sum : sums)
          if (sum) sum->finish();
      }
    }
  }
}

}  // namespace MDOPS_ISA
}  // namespace mdops

#endif
