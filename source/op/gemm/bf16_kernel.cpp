// The products of bf16.h, compiled once for AMX (with MDOPS_AMX) and once for AVX512-BF16: compilers do not
// produce these from a loop. The factors have the same layout.
#if defined(__x86_64__)

#include "gemm/bf16.h"

#include <immintrin.h>

#if defined(MDOPS_AMX)
#include "gemm/tiles.h"
#endif

namespace mdops::MDOPS_ISA {

namespace {

int64_t tiles_of(int64_t count, int tile) {
  return (count + tile - 1) / tile;
}

// Vector `lane` of a row.
struct Lanes {
  float* base;
  int64_t stride;  // from row to row

  Lanes(const Bf16Panels& of, int64_t lane) {
    const int64_t col = lane / of.panel * of.panel;
    stride = of.cols - col < of.panel ? of.cols - col : of.panel;
    base = of.base + col * of.rows + of.first * stride + (lane - col);
  }
};

// Removes the next part from sixteen numbers, and returns it in the upper halves: the nearest bfloat16, in a
// tie the larger. A NaN must be as `whole` returns it.
inline __m512i next_part(__m512& x) {
  const __m512i near = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
  const __m512i part = _mm512_and_si512(near, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
  x = _mm512_sub_ps(x, _mm512_castsi512_ps(part));
  return part;
}

// The numbers, with one fixed NaN for all NaNs: adding to the bits of another could make it zero.
inline __m512 whole(__m512 x) {
  constexpr int kNoNumbersAlike = 0x11111133;
  return _mm512_fixupimm_ps(x, x, _mm512_set1_epi32(kNoNumbersAlike), 0);
}

// Packs numbers of upper halves in pairs.
inline __m512i side_by_side(__m512i even, __m512i odd) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(even, 16), odd);
}

// Packs numbers of upper halves: first all of one, then all of the other.
inline __m512i one_after_other(__m512i first, __m512i second) {
  const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_castsi512_ps(second), _mm512_castsi512_ps(first));
  return reinterpret_cast<__m512i>(both);
}

inline void transpose(const __m512i (&from)[16], __m512i (&to)[16]) {
  __m512i a[16], b[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; r += 2) {
    a[r] = _mm512_unpacklo_epi32(from[r], from[r + 1]);
    a[r + 1] = _mm512_unpackhi_epi32(from[r], from[r + 1]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < 16; r += 4) {
    b[r] = _mm512_unpacklo_epi64(a[r], a[r + 2]);
    b[r + 1] = _mm512_unpackhi_epi64(a[r], a[r + 2]);
    b[r + 2] = _mm512_unpacklo_epi64(a[r + 1], a[r + 3]);
    b[r + 3] = _mm512_unpackhi_epi64(a[r + 1], a[r + 3]);
  }
  // b[4 i + j] has of rows 4 i to 4 i + 3 the columns j, j + 4, j + 8, j + 12, a quarter each.
#pragma GCC unroll 16
  for (int j = 0; j < 4; ++j) {
    const __m512i low = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);
    const __m512i high = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
    const __m512i low_odd = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
    const __m512i high_odd = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
    to[j] = _mm512_shuffle_i32x4(low, high, 0x88);
    to[j + 8] = _mm512_shuffle_i32x4(low, high, 0xdd);
    to[j + 4] = _mm512_shuffle_i32x4(low_odd, high_odd, 0x88);
    to[j + 12] = _mm512_shuffle_i32x4(low_odd, high_odd, 0xdd);
  }
}

// Splits sixteen lanes of a right factor.
template <int Parts>
inline void split_lanes(const float* from, int64_t stride, int64_t rows, uint16_t* to) {
  for (int64_t k = 0; k < rows; k += kBf16Depth, to += kBf16Tile * Parts)
    for (int pair = 0; pair < kBf16Depth / 2; ++pair) {
      const int64_t row = k + 2 * pair;
      __m512 x0 = _mm512_setzero_ps(), x1 = x0;
      if (row < rows) x0 = whole(_mm512_loadu_ps(from + row * stride));
      if (row + 1 < rows) x1 = whole(_mm512_loadu_ps(from + (row + 1) * stride));
#pragma GCC unroll 3
      for (int part = 0; part < Parts; ++part) {
        const __m512i even = next_part(x0), odd = next_part(x1);
        _mm512_store_si512(to + part * kBf16Tile + pair * 32, side_by_side(even, odd));
      }
    }
}

constexpr int kAhead = 128;  // numbers of a row

inline __mmask16 first_of(int64_t count) {
  return count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
}

// Sixteen rows of numbers along the depth, of which `count` exist: each row's k-th pair goes to row k of a
// tile, or to its own row.
template <int Parts>
inline void tile_of_rows(const float* from, int64_t stride, int64_t count, int64_t depth, bool across,
                         uint16_t* to) {
  const __mmask16 low = first_of(depth), high = first_of(depth - 16);
  __m512i row[Parts][16];
  for (int r = 0; r < 16; ++r) {
    __m512 x0 = _mm512_setzero_ps(), x1 = x0;
    if (r < count) {
      if (across) {
        // Rows are far apart, and a group of columns has few lines of each: too few for the hardware
        // prefetcher.
        const char* ahead = reinterpret_cast<const char*>(from + r * stride + kAhead);
        _mm_prefetch(ahead, _MM_HINT_T1), _mm_prefetch(ahead + 64, _MM_HINT_T1);
      }
      x0 = whole(_mm512_maskz_loadu_ps(low, from + r * stride));
      if (high) x1 = whole(_mm512_maskz_loadu_ps(high, from + r * stride + 16));
    }
#pragma GCC unroll 3
    for (int part = 0; part < Parts; ++part) {
      const __m512i first = next_part(x0), second = next_part(x1);
      row[part][r] = one_after_other(first, second);
    }
  }
  for (int part = 0; part < Parts; ++part) {
    __m512i turned[16];
    if (across) transpose(row[part], turned);
    for (int r = 0; r < 16; ++r)
      _mm512_store_si512(to + part * kBf16Tile + r * 32, across ? turned[r] : row[part][r]);
  }
}

// A left factor's tile of a matrix stored by depth: 16 numbers of each row.
template <int Parts>
inline void tile_by_depth(const float* from, int64_t stride, int64_t count, int64_t depth, uint16_t* to) {
  const __mmask16 in_bounds = first_of(count);
  __m512i pairs[Parts][16];
  for (int pair = 0; pair < 16; ++pair) {
    __m512 x0 = _mm512_setzero_ps(), x1 = x0;
    if (2 * pair < depth) x0 = whole(_mm512_maskz_loadu_ps(in_bounds, from + 2 * pair * stride));
    if (2 * pair + 1 < depth) x1 = whole(_mm512_maskz_loadu_ps(in_bounds, from + (2 * pair + 1) * stride));
#pragma GCC unroll 3
    for (int part = 0; part < Parts; ++part) {
      const __m512i even = next_part(x0), odd = next_part(x1);
      pairs[part][pair] = side_by_side(even, odd);
    }
  }
  for (int part = 0; part < Parts; ++part) {
    __m512i turned[16];
    transpose(pairs[part], turned);
    for (int r = 0; r < 16; ++r) _mm512_store_si512(to + part * kBf16Tile + r * 32, turned[r]);
  }
}

// Where the sums of 16 rows of C from `row` on are made: in C, or in a buffer, as rows after the last one
// have no place in C, and as sums of three parts are complete before they are added to C. (Adding a small
// product to a large sum loses the most bits.)
class Sums {
 public:
  float* at;
  int64_t stride;

  void begin(const Lanes& c, int64_t row, int64_t rows, bool accumulate, bool apart) {
    at = c_ = c.base + row * c.stride, stride = c_stride_ = c.stride;
    left_ = rows - row < kBf16Rows ? rows - row : kBf16Rows;
    adds_ = accumulate && apart;
    beside_c_ = left_ < kBf16Rows || adds_;
    if (!beside_c_) return;
    at = &beside_[0][0], stride = kBf16Lanes;
    for (int64_t r = 0; accumulate && !apart && r < left_; ++r)
      _mm512_store_ps(beside_[r], _mm512_loadu_ps(c_ + r * c_stride_));
  }
  void finish() const {
    if (!beside_c_) return;
    for (int64_t r = 0; r < left_; ++r) {
      __m512 sum = _mm512_load_ps(beside_[r]);
      if (adds_) sum = _mm512_add_ps(sum, _mm512_loadu_ps(c_ + r * c_stride_));
      _mm512_storeu_ps(c_ + r * c_stride_, sum);
    }
  }

 private:
  float* c_;
  int64_t c_stride_, left_;
  bool adds_, beside_c_;
  alignas(64) float beside_[kBf16Rows][kBf16Lanes];
};

// A run of steps of a product's depth. `next` is the distance to the next row or column of tiles.
struct Run {
  const uint16_t *a, *b;
  int64_t steps, next;
};

// As many steps that two rows of A's tiles and a column of B's stay in the L1 cache.
template <int Parts>
constexpr int kMostSteps = Parts == 1 ? 8 : 4;

// Runs of the pieces for one or two rows and columns of tiles.
struct Block {
  const Run* runs;
  int count;
  int64_t row, column, columns;  // of tiles: the first ones, and the number of all columns
  int high, wide;                // rows and columns of this block
  const Sums (*sums)[2];         // [row][column]
  bool accumulate;
};

#if defined(MDOPS_AMX)

// Tiles 0 and 1 are the sums of two rows of A's tiles by a column of B's, 2 is A's and 3 is B's. If
// another thread shares the core, registers for renaming tiles seem to be few: with all eight tiles in use
// each instruction waits until the one before it is complete, and a product with its loads takes four times
// as long (matmul.md). So tiles are few, and each is zeroed before it is loaded again.

// Prefetches the next two rows of A's tiles during these, as they are far away: a fraction with each column
// of B's, and of that a fraction at each step.
class NextRows {
 public:
  NextRows(const Block& block, const Run& run, int64_t step_size)
      : part_((step_size / kLine + block.columns - 1) / block.columns * kLine),
        row_(run.next),
        at_(run.a + (block.row + 2) * row_ + block.column * part_ * run.steps) {}

  void step() {
    for (int64_t k = 0; k < part_; k += kLine) {
      _mm_prefetch(reinterpret_cast<const char*>(at_ + k), _MM_HINT_T1);
      _mm_prefetch(reinterpret_cast<const char*>(at_ + row_ + k), _MM_HINT_T1);
    }
    at_ += part_;
  }

 private:
  static constexpr int64_t kLine = 32;  // numbers

  const int64_t part_, row_;
  const uint16_t* at_;
};

// Calls work(b, first, second) for each step: b(part) loads B's tile; first(part) and second(part) load a
// tile of A's rows, and multiply; first() multiplies the loaded one.
template <int Parts, bool SecondRow, class Work>
MDOPS_INLINE void each_step(const Block& block, const Work& work) {
  constexpr int64_t size = kBf16Tile * Parts;
  for (const Run* run = block.runs; run < block.runs + block.count; ++run) {
    const uint16_t *a0 = run->a + block.row * run->next, *a1 = a0 + run->next;
    const uint16_t* b0 = run->b + block.column * run->next;
    NextRows next(block, *run, size);
    for (int64_t step = 0; step < run->steps; ++step, a0 += size, a1 += size, b0 += size) {
      const auto b = [&](int part)
                         __attribute__((always_inline)) { tile_reload<kTileB>(b0 + part * kBf16Tile, 64); };
      const auto first = [&](auto... part) __attribute__((always_inline)) {
        (tile_reload<kTileA>(a0 + part * kBf16Tile, 64), ...);
        tile_product<0>();
      };
      const auto second = [&](int part) __attribute__((always_inline)) {
        if constexpr (SecondRow) tile_reload<kTileA>(a1 + part * kBf16Tile, 64), tile_product<1>();
      };
      next.step();
      work(b, first, second);
    }
  }
}

// With three parts the small products come first, for all steps, and the high parts are loaded again.
template <int Parts, bool SecondRow>
inline void multiply_tiles(const Block& block) {
  // Some compilers think tile loads do not read memory, and may move writes past them.
  asm volatile("" ::: "memory");
  const auto each_sum = [&](const auto& work) __attribute__((always_inline)) {
    work.template operator()<0>(block.sums[0][0]);
    if constexpr (SecondRow) work.template operator()<1>(block.sums[1][0]);
  };
  each_sum([&]<int row>(const Sums& sum) __attribute__((always_inline)) {
    tile_zero<row>();
    if (block.accumulate) tile_load<row>(sum.at, 4 * sum.stride);
  });
  if constexpr (Parts == 3)
    each_step<Parts, SecondRow>(
        block, [](const auto& b, const auto& first, const auto& second) __attribute__((always_inline)) {
          b(2), second(0), first(0);
          b(1), first(), second(0), second(1), first(1);
          b(0), first(), second(1), second(2), first(2);
        });
  each_step<Parts, SecondRow>(
      block, [](const auto& b, const auto& first, const auto& second) __attribute__((always_inline)) {
        b(0);
        if constexpr (Parts == 2) first(1), second(1);
        second(0), first(0);
        if constexpr (Parts == 2) b(1), first(), second(0);
      });
  each_sum([&]<int row>(const Sums& sum)
               __attribute__((always_inline)) { tile_store<row>(sum.at, 4 * sum.stride); });
}

using Setting = Tiles;
constexpr int kMostWide = 1;
constexpr bool kRowsOutside = true;

template <int Parts>
inline void multiply_block(const Block& block) {
  block.high == 2 ? multiply_tiles<Parts, true>(block) : multiply_tiles<Parts, false>(block);
}

#else

// Eight rows of A with one or two vectors of B in registers.
template <int Parts, bool SecondColumn>
inline void multiply_rows(const Block& block, int tile, int first) {
  constexpr int rows = 8;
  const Sums* const sums = block.sums[tile];
  const auto place = [&](int lanes, int r) { return sums[lanes].at + (first + r) * sums[lanes].stride; };
  __m512 sum[2][rows];
  for (int r = 0; r < rows; ++r) {
    sum[0][r] = block.accumulate ? _mm512_loadu_ps(place(0, r)) : _mm512_setzero_ps();
    if constexpr (SecondColumn)
      sum[1][r] = block.accumulate ? _mm512_loadu_ps(place(1, r)) : _mm512_setzero_ps();
  }
  const auto all_steps = [&]<int most, int least>() __attribute__((always_inline)) {
    for (const Run* run = block.runs; run < block.runs + block.count; ++run) {
      const int64_t next = run->next;
      const uint16_t *a = run->a + (block.row + tile) * next, *b = run->b + block.column * next;
      const auto products = [&](const uint16_t* left, const uint16_t* right) __attribute__((always_inline)) {
        for (int pair = 0; pair < kBf16Depth / 2; ++pair) {
          const __m512bh b0 = reinterpret_cast<__m512bh>(_mm512_load_si512(right + 32 * pair));
          const __m512bh b1 =
              SecondColumn ? reinterpret_cast<__m512bh>(_mm512_load_si512(right + next + 32 * pair)) : b0;
          for (int r = 0; r < rows; ++r) {
            int both;
            __builtin_memcpy(&both, left + (first + r) * kBf16Depth + 2 * pair, sizeof(both));
            const __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(both));
            sum[0][r] = _mm512_dpbf16_ps(sum[0][r], x, b0);
            if constexpr (SecondColumn) sum[1][r] = _mm512_dpbf16_ps(sum[1][r], x, b1);
          }
        }
      };
      for (int64_t step = 0; step < run->steps; ++step, a += kBf16Tile * Parts, b += kBf16Tile * Parts) {
        if constexpr (most == 2) {
          products(a, b + 2 * kBf16Tile);
          products(a + kBf16Tile, b + kBf16Tile);
          products(a + 2 * kBf16Tile, b);
        }
        if constexpr (most >= 1) {
          products(a, b + kBf16Tile);
          products(a + kBf16Tile, b);
        }
        if constexpr (least == 0) products(a, b);
      }
    }
  };
  if constexpr (Parts == 3)
    all_steps.template operator()<2, 1>(),
        all_steps.template operator()<0, 0>();  // the small products first, for the whole depth
  else
    all_steps.template operator()<Parts - 1, 0>();
  for (int r = 0; r < rows; ++r) {
    _mm512_storeu_ps(place(0, r), sum[0][r]);
    if constexpr (SecondColumn) _mm512_storeu_ps(place(1, r), sum[1][r]);
  }
}

struct Setting {
  Setting() {}
};
constexpr int kMostWide = 2;
constexpr bool kRowsOutside = false;

template <int Parts>
inline void multiply_block(const Block& block) {
  for (int tile = 0; tile < block.high; ++tile)
    for (int first = 0; first < kBf16Rows; first += 8)
      block.wide == 2 ? multiply_rows<Parts, true>(block, tile, first)
                      : multiply_rows<Parts, false>(block, tile, first);
}

#endif

// Calls work(runs, count) with runs of at most kMostSteps steps in total, over the depth of all pieces.
template <int Parts, class Work>
inline void each_depth(const Bf16Piece* pieces, int count, const Work& work) {
  Run runs[kMostSteps<Parts>];
  int used = 0;
  int64_t room = kMostSteps<Parts>;
  for (const Bf16Piece* piece = pieces; piece < pieces + count; ++piece) {
    constexpr int64_t size = kBf16Tile * Parts;
    const int64_t steps = tiles_of(piece->depth, kBf16Depth);
    for (int64_t from = 0, taken; from < steps; from += taken, room -= taken) {
      if (room == 0) work(runs, used), used = 0, room = kMostSteps<Parts>;
      taken = steps - from < room ? steps - from : room;
      runs[used++] = {piece->a + from * size, piece->b + from * size, taken, steps * size};
    }
  }
  work(runs, used);
}

// Blocks of two rows of tiles. AMX uses the rows' tiles, which are far away, for all lanes at once; the
// vector units, with two columns of lanes at a time, keep the lanes in a near cache.
template <int Parts>
void multiply_all(const Bf16Piece* pieces, int count, int64_t rows, const Bf16Panels& c, bool accumulate) {
  const Setting setting;
  const int64_t tiles = tiles_of(rows, kBf16Rows), columns = tiles_of(c.cols, kBf16Lanes);
  each_depth<Parts>(pieces, count, [&](const Run* runs, int used) {
    const auto work = [&](int64_t row, int64_t column) {
      constexpr bool apart = Parts == 3;
      Sums sums[2][2];
      const int high = row + 1 < tiles ? 2 : 1, wide = kMostWide == 2 && column + 1 < columns ? 2 : 1;
      for (int k = 0; k < wide; ++k) {
        const Lanes lanes(c, (column + k) * kBf16Lanes);
        for (int r = 0; r < high; ++r)
          sums[r][k].begin(lanes, (row + r) * kBf16Rows, rows, accumulate, apart);
      }
      multiply_block<Parts>({runs, used, row, column, columns, high, wide, sums, accumulate && !apart});
      for (int k = 0; k < wide; ++k)
        for (int r = 0; r < high; ++r) sums[r][k].finish();
    };
    if (kRowsOutside) {
      for (int64_t row = 0; row < tiles; row += 2)
        for (int64_t column = 0; column < columns; column += kMostWide) work(row, column);
    } else {
      for (int64_t column = 0; column < columns; column += kMostWide)
        for (int64_t row = 0; row < tiles; row += 2) work(row, column);
    }
    accumulate = true;
  });
}

// Calls work.template operator()<parts>().
inline void with_parts(int parts, const auto& work) {
  if (parts == 1) return work.template operator()<1>();
  if (parts == 2) return work.template operator()<2>();
  work.template operator()<3>();
}

void split(const Bf16Panels& from, int64_t depth, int parts, uint16_t* to) {
  with_parts(parts, [&]<int Parts>() {
    const int64_t size = tiles_of(depth, kBf16Depth) * kBf16Tile * Parts;
    for (int64_t lane = 0; lane < from.cols; lane += kBf16Lanes, to += size) {
      const Lanes lanes(from, lane);
      split_lanes<Parts>(lanes.base, lanes.stride, depth, to);
    }
  });
}

void split_rows(const float* from, int64_t stride, int64_t count, int64_t depth, int64_t lanes, int parts,
                uint16_t* to) {
  with_parts(parts, [&]<int Parts>() {
    for (int64_t lane = 0; lane < lanes; lane += kBf16Lanes)
      for (int64_t k = 0; k < depth; k += kBf16Depth, to += kBf16Tile * Parts)
        tile_of_rows<Parts>(from + lane * stride + k, stride, count - lane, depth - k, true, to);
  });
}

void multiply(const Bf16Piece* pieces, int count, int parts, int64_t rows, const Bf16Panels& c,
              bool accumulate) {
  with_parts(parts, [&]<int Parts>() { multiply_all<Parts>(pieces, count, rows, c, accumulate); });
}

void pack(const Bf16Weights& from, int64_t begin, int64_t end, int parts, uint16_t* to) {
  with_parts(parts, [&]<int Parts>() {
    const int64_t steps = tiles_of(from.depth(), kBf16Depth);
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t row = tile / steps * kBf16Rows, k = tile % steps * kBf16Depth;
      const int64_t rows = from.rows() - row, depth = from.depth() - k;
      uint16_t* const at = to + tile * kBf16Tile * Parts;
      if (from.up)
        tile_by_depth<Parts>(from.weights + k * from.outputs + row, from.outputs, rows, depth, at);
      else
        tile_of_rows<Parts>(from.weights + row * from.outputs + k, from.outputs, rows, depth, false, at);
    }
  });
}

}  // namespace

#if defined(MDOPS_AMX)
extern const Bf16Units bf16_units = {"amx", kBf16AtOnce, split, split_rows, multiply, pack};
#else
extern const Bf16Units bf16_units = {"avx512_bf16", 128, split, split_rows, multiply, pack};
#endif

}  // namespace mdops::MDOPS_ISA

#endif
