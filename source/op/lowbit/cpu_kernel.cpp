#include "lowbit/cpu_kernel.h"

#include <cstring>

#include "gemm/product.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Integers are multiplied by panels of B, kDotColumns columns, packed as words of 32 bits:
//
//   plain   two int16 a word: the products of two pairs are summed exactly (pmaddwd)
//   vnni    four bytes a word, those of B without sign (+ 128, ternary + 2: their part of the sum, that of
//           the row's numbers, is taken off again; sums are right modulo 2^32, and so in the end)
//   amx     four int8 a word, in tiles of 16 x 16 words: of several groups
//   tiles   the same of one group, in an order of its own (cpu_tiles.h)
//
// Float8 is multiplied as float32, into which it is decoded.
namespace mdops::MDOPS_ISA {

namespace {

using Ints = VectorIndex<float>;
constexpr int kDotRows = 6, kDotVectors = kVectorBytes == 64 ? 4 : 2;
constexpr int kIntLanes = kLanes<int32_t>, kDotColumns = kDotVectors * kIntLanes;
constexpr int kBlockRows = 32 * kDotRows;  // of C; a panel of B is packed once for each block
// AMX multiplies two by two tiles of 16 x 16 sums.
constexpr int kTile = 16, kTileRows = 2 * kTile, kTileDepth = 64;

namespace plain {

MDOPS_HD Ints dot(Ints sum, Ints b, Ints a) {
#if defined(MDOPS_ISA_LEVEL_v4)
  return sum + (Ints)_mm512_madd_epi16((__m512i)b, (__m512i)a);
#elif defined(MDOPS_ISA_LEVEL_v3)
  return sum + (Ints)_mm256_madd_epi16((__m256i)b, (__m256i)a);
#elif defined(__x86_64__)
  return sum + (Ints)_mm_madd_epi16((__m128i)b, (__m128i)a);
#else
  return sum + (b << 16 >> 16) * (a << 16 >> 16) + (b >> 16) * (a >> 16);
#endif
}

}  // namespace plain

#define MDOPS_DOT plain
#define MDOPS_DOT_TARGET
#include "lowbit/cpu_dot.h"
#undef MDOPS_DOT
#undef MDOPS_DOT_TARGET

#if defined(MDOPS_ISA_LEVEL_v4)
#define MDOPS_DOT vnni
#define MDOPS_DOT_TARGET __attribute__((target("avx512vnni")))
namespace vnni {

MDOPS_DOT_TARGET MDOPS_HD Ints dot(Ints sum, Ints b, Ints a) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)b, (__m512i)a);
}

}  // namespace vnni
#include "lowbit/cpu_dot.h"
#undef MDOPS_DOT
#undef MDOPS_DOT_TARGET
#endif

// The numbers of the depth in a word, and a group's padded depth.
constexpr int deep(LowBitChip chip) {
  return chip == LowBitChip::plain ? 2 : 4;
}
int64_t padded_group(const LowBitProduct& p, LowBitChip chip) {
  const int64_t of = chip == LowBitChip::amx || chip == LowBitChip::tiles ? kTileDepth : deep(chip);
  return (p.group + of - 1) / of * of;
}
int64_t words_of(const LowBitProduct& p, LowBitChip chip) {
  return padded_group(p, chip) / deep(chip);
}
// Words of a row of A.
int64_t row_words(const LowBitProduct& p, LowBitChip chip) {
  return p.groups * words_of(p, chip);
}
// Whether the rows of A can be multiplied in place.
bool is_in_place(const LowBitProduct& p, LowBitChip chip) {
  if (padded_group(p, chip) != p.group) return false;
  return chip == LowBitChip::amx ? p.depth % kTileDepth == 0 && p.rows % kTileRows == 0
                                 : chip == LowBitChip::vnni && p.depth % 4 == 0;
}
int64_t whole_rows(const LowBitProduct& p) {
  return (p.rows + kTileRows - 1) / kTileRows * kTileRows;
}
// After A: the sums of its rows' groups.
int32_t* row_sums(const LowBitProduct& p, LowBitChip chip, void* prepared) {
  return static_cast<int32_t*>(prepared) + (is_in_place(p, chip) ? 0 : whole_rows(p) * row_words(p, chip));
}

// What is added to the bytes of B.
int32_t offset_of(const LowBitProduct& p, LowBitChip chip) {
  return chip != LowBitChip::vnni ? 0 : p.b_kind == LowBit::ternary ? 2 : 128;
}

// Four numbers of B from `k` on in column n, as bytes; zeros after the end of the depth.
uint32_t four_of(const LowBitProduct& p, int64_t k, int64_t n, int64_t end) {
  uint32_t word = 0;
  for (int64_t j = 0; j < 4 && k + j < end; ++j) {
    const int64_t at = k + j;
    const uint8_t value = p.b_kind == LowBit::ternary
                              ? static_cast<uint8_t>(ternary_of(p.b[at / 4 * p.b_row + n * p.b_col], at % 4))
                              : p.b[at * p.b_row + n * p.b_col];
    word |= static_cast<uint32_t>(value) << (8 * j);
  }
  return word;
}

// Signed bytes in the form for words of B.
template <LowBitChip Chip>
MDOPS_HD void put_words(uint32_t four, uint32_t flip, int32_t* at, int64_t below) {
  if constexpr (Chip == LowBitChip::plain) {
    const auto wide = [&](int j) { return static_cast<uint32_t>(static_cast<int8_t>(four >> 8 * j)); };
    at[0] = static_cast<int32_t>((wide(0) & 0xffff) | wide(1) << 16);
    at[below] = static_cast<int32_t>((wide(2) & 0xffff) | wide(3) << 16);
  } else {
    at[0] = static_cast<int32_t>(four ^ flip);
  }
}

// The bytes of four ternary numbers with their signs.
MDOPS_HD uint32_t spread(uint32_t packed) {
  const uint32_t codes = (packed | packed << 6 | packed << 12 | packed << 18) & 0x03030303u;
  return codes | (codes >> 1 & 0x01010101u) * 0xfcu;
}

// Columns of B whose words are adjacent; then come all words of the next columns.
template <LowBitChip Chip>
constexpr int kWide = Chip == LowBitChip::tiles ? kTile : kDotColumns;

// A block of words of B stored by columns; false if it is stored otherwise.
template <LowBitChip Chip>
bool pack_square(const LowBitProduct& p, const uint8_t* from, int64_t columns, uint32_t flip, int32_t* to) {
  constexpr int n = kLanes<float>;
  if (Chip == LowBitChip::plain || columns < n || p.b_col % 4 || reinterpret_cast<uintptr_t>(from) % 4)
    return false;
  const float* const rows = reinterpret_cast<const float*>(from);
  if constexpr (Chip == LowBitChip::tiles) {
    transpose_tile(rows, p.b_col / 4, reinterpret_cast<float*>(to), kWide<Chip>);
    return true;
  }
  float words[n * n];
  transpose_tile(rows, p.b_col / 4, words, n);
  for (int k = 0; k < n; ++k)
    for (int c = 0; c < n; ++c) {
      uint32_t word;
      std::memcpy(&word, words + k * n + c, 4);
      to[k * kWide<Chip> + c] = static_cast<int32_t>(word ^ flip);
    }
  return true;
}

// Columns [first, first + kDotColumns) of B, group after group, each padded with zeros.
template <LowBitChip Chip>
void pack_panel(const LowBitProduct& p, int64_t first, int32_t* to) {
  constexpr int kWords = 4 / deep(Chip), kRow = kWide<Chip>;  // words of four numbers, and of a row of them
  const int64_t words = words_of(p, Chip);
  // fill(row) writes the words of four numbers of all columns, for `at`.
  const auto put_row = [&](int32_t* at, const auto& fill) {
    if constexpr (Chip != LowBitChip::tiles) return fill(at);
    alignas(64) int32_t row[kDotColumns];
    fill(row);
    for (int n = 0; n < kDotColumns; n += kRow) std::memcpy(at + n * words, row + n, kRow * sizeof(int32_t));
  };
  const int64_t columns = p.cols - first < kDotColumns ? p.cols - first : kDotColumns;
  // B without sign: int8 + 128 is int8 ^ 0x80; the bytes of a ternary number + 2 are its low two bits ^ 2.
  const bool is_ternary = p.b_kind == LowBit::ternary;
  const uint32_t flip = Chip == LowBitChip::vnni ? 0x80808080u : 0;
  for (int64_t g = 0; g < p.groups; ++g) {
    const int64_t begin = p.first(g), end = begin + p.size(g), filled = padded_group(p, Chip);
    int64_t k = begin;
    if (p.b_row == 1 && !is_ternary) {
      constexpr int kSide = kLanes<float>;
      bool square = true;
      for (; square && k + 4 * kSide <= end; k += square ? 4 * kSide : 0)
        for (int64_t n = 0; square && n < kDotColumns; n += kSide)
          square = pack_square<Chip>(p, p.b + k + (first + n) * p.b_col, columns - n, flip,
                                     to + (k - begin) / 4 * kRow + n / kRow * kRow * words + n % kRow);
    }
    if (!is_ternary || begin % 4 == 0)
      for (; k + 4 <= end; k += 4)
        put_row(to + (k - begin) / 4 * kWords * kRow, [&](int32_t* at) {
          if (is_ternary) {
            const uint8_t* row = p.b + k / 4 * p.b_row + first * p.b_col;
            for (int64_t n = 0; n < columns; ++n) {
              uint32_t four = spread(row[n * p.b_col]);
              if (Chip == LowBitChip::vnni) four = (four & 0x03030303u) ^ 0x02020202u;
              put_words<Chip>(four, 0, at + n, kDotColumns);
            }
          } else if (p.b_row == 1) {
            const uint8_t* row = p.b + k + first * p.b_col;
            for (int64_t n = 0; n < columns; ++n) {
              uint32_t four;
              std::memcpy(&four, row + n * p.b_col, 4);
              put_words<Chip>(four, flip, at + n, kDotColumns);
            }
          } else {
            const uint8_t *row = p.b + k * p.b_row + first * p.b_col, *row1 = row + p.b_row,
                          *row2 = row1 + p.b_row, *row3 = row2 + p.b_row;
            if (p.b_col == 1) {
              for (int64_t n = 0; n < columns; ++n)
                put_words<Chip>(row[n] | row1[n] << 8 | row2[n] << 16 | static_cast<uint32_t>(row3[n]) << 24,
                                flip, at + n, kDotColumns);
            } else {
              for (int64_t n = 0; n < columns; ++n)
                put_words<Chip>(four_of(p, k, first + n, end), flip, at + n, kDotColumns);
            }
          }
          for (int64_t n = columns; n < kDotColumns; ++n)
            for (int w = 0; w < kWords; ++w) at[n + w * kDotColumns] = 0;
        });
    for (; k < begin + filled; k += 4)
      put_row(to + (k - begin) / 4 * kWords * kRow, [&](int32_t* at) {
        const bool half = Chip == LowBitChip::plain && k + 2 >= begin + filled;  // one word is left
        for (int64_t n = 0; n < kDotColumns; ++n) {
          int32_t own[2] = {};
          if (n < columns) {
            uint32_t four = four_of(p, k, first + n, end);
            if (Chip == LowBitChip::vnni && is_ternary) four = (four & 0x03030303u) ^ 0x02020202u;
            put_words<Chip>(four, is_ternary ? 0 : flip, own, 1);
          }
          at[n] = own[0];
          if (kWords == 2 && !half) at[n + kDotColumns] = own[1];
        }
      });
    to += words * kDotColumns;
  }
}

// Prevents a fused multiply-add: both operations are rounded, on every processor.
MDOPS_HD void keep_rounded(auto& v) {
#if defined(__x86_64__)
  asm("" : "+x"(v));
#elif defined(__aarch64__)
  asm("" : "+w"(v));
#else
  asm("" : "+m"(v));
#endif
}

constexpr int kFloats = kLanes<float>;
typedef int32_t WholeInts __attribute__((vector_size(kVectorBytes), aligned(4), may_alias));

// sum (+)= tile scale for a row of C; `extra` is subtracted from each number first.
MDOPS_HD void add_group(const int32_t* tile, int32_t extra, const float* scale, float* sum, int columns,
                        bool is_first) {
  for (int n = 0; n < columns; n += kFloats) {
    const WholeInts whole = *reinterpret_cast<const WholeInts*>(tile + n) - extra;
    Vector<float> term = __builtin_convertvector(whole, Vector<float>) * vector_at(scale + n);
    keep_rounded(term);
    store(sum + n, is_first ? term : vector_at(sum + n) + term);
  }
}

// The results of a row of C.
void finish_row(const LowBitProduct& p, int64_t row, int64_t first, float* sum) {
  const int64_t left = p.cols - first, at = row * p.cols + first;
  const int count = static_cast<int>(left < kDotColumns ? left : kDotColumns);
  const float scale = p.a_scale[row * p.a_step];
  for (int n = 0; n < kDotColumns; ++n) sum[n] *= scale;
  if (p.out_kind == LowBitOut::float32) {
    float* const out = static_cast<float*>(p.out) + at;
    if (count == kDotColumns)
      std::memcpy(out, sum, kDotColumns * sizeof(float));
    else
      std::memcpy(out, sum, count * sizeof(float));
    return;
  }
  uint16_t halves[kDotColumns], *out = static_cast<uint16_t*>(p.out) + at;
  if (p.out_kind == LowBitOut::bfloat16) {
    for (int n = 0; n < kDotColumns; ++n) {
      uint32_t bits;
      std::memcpy(&bits, sum + n, 4);
      halves[n] = bfloat16_bits(bits);
    }
  } else {
#if defined(MDOPS_ISA_LEVEL_v3) || defined(MDOPS_ISA_LEVEL_v4)
    for (int n = 0; n < kDotColumns; n += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(halves + n),
                       _mm256_cvtps_ph(_mm256_loadu_ps(sum + n), _MM_FROUND_TO_NEAREST_INT));
#else
    for (int n = 0; n < kDotColumns; ++n) {
      uint32_t bits;
      std::memcpy(&bits, sum + n, 4);
      halves[n] = float16_bits(bits);
    }
#endif
  }
  std::memcpy(out, halves, count * sizeof(uint16_t));
}

#if defined(MDOPS_ISA_LEVEL_v4)
#define MDOPS_AMX __attribute__((target("amx-tile,amx-int8")))

struct alignas(64) TileSetting {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Constant in memory, and the barrier below: GCC's intrinsics do not declare their reads.
constexpr TileSetting kTileSetting;

MDOPS_AMX void begin_tiles() {
  _tile_loadconfig(&kTileSetting);
}
MDOPS_AMX void end_tiles() {
  _tile_release();
}

// kTileRows rows by kDotColumns columns of sums.
MDOPS_AMX void tile_sums(int64_t words, const int32_t* a, int64_t stride, const int32_t* b, int32_t* tile) {
  constexpr int kStep = kTileDepth / 4, kApart = 4 * kDotColumns;  // words of a tile's depth; bytes
  asm volatile("" ::: "memory");
  for (int n = 0; n < kDotColumns; n += 2 * kTile) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < words; k += kStep) {
      const int32_t* column = b + k * kDotColumns + n;
      _tile_loadd(4, a + k, 4 * stride);
      _tile_loadd(5, a + kTile * stride + k, 4 * stride);
      _tile_loadd(6, column, kApart);
      _tile_loadd(7, column + kTile, kApart);
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, tile + n, kApart);
    _tile_stored(1, tile + n + kTile, kApart);
    _tile_stored(2, tile + kTile * kDotColumns + n, kApart);
    _tile_stored(3, tile + kTile * kDotColumns + n + kTile, kApart);
  }
}
#endif

// Of columns [first, first + kDotColumns), group by group.
void put_scales(const LowBitProduct& p, int64_t first, float* to) {
  for (int64_t g = 0; g < p.groups; ++g)
    for (int64_t n = 0; n < kDotColumns; ++n)
      *to++ = p.b_step == 0 ? p.b_scale[0] : first + n < p.cols ? p.b_scale[g * p.cols + first + n] : 0.0f;
}

struct Scratch {
  int32_t* panel;
  float* scale;  // of the panel's columns, group by group

  Scratch(const LowBitProduct& p, LowBitChip chip, void* memory, int64_t* bytes = nullptr) {
    Arena arena{static_cast<char*>(memory)};
    panel = arena.take<int32_t>(row_words(p, chip) * kDotColumns);
    scale = arena.take<float>(p.groups * kDotColumns);
    if (bytes) *bytes = arena.used;
  }
};

template <LowBitChip Chip>
void integer_pieces(const LowBitProduct& p, int64_t block, int64_t begin, int64_t end, const void* prepared,
                    void* memory) {
  const int64_t blocks = (p.rows + block - 1) / block, words = words_of(p, Chip);
  const bool in_place = is_in_place(p, Chip);
  const int64_t stride = in_place ? p.depth / 4 : row_words(p, Chip);
  const int32_t* a = static_cast<const int32_t*>(in_place ? static_cast<const void*>(p.a) : prepared);
  const int32_t* sums = row_sums(p, Chip, const_cast<void*>(prepared));
  const int32_t offset = offset_of(p, Chip);
  const Scratch scratch(p, Chip, memory);
  constexpr int kStep = Chip == LowBitChip::amx ? kTileRows : kDotRows;
  alignas(64) int32_t tile[kStep * kDotColumns];
  alignas(64) float sum[kStep * kDotColumns];
#if defined(MDOPS_ISA_LEVEL_v4)
  if (Chip == LowBitChip::amx) begin_tiles();
#endif
  int64_t packed = -1;
  for (int64_t piece = begin; piece < end; ++piece) {
    const int64_t panel = piece / blocks, first = panel * kDotColumns;
    if (panel != packed) {
      pack_panel<Chip>(p, first, scratch.panel);
      put_scales(p, first, scratch.scale);
      packed = panel;
    }
    const int64_t top = piece % blocks * block, bottom = top + block < p.rows ? top + block : p.rows;
    for (int64_t row = top; row < bottom; row += kStep) {
      const int rows = static_cast<int>(bottom - row < kStep ? bottom - row : kStep);
      for (int64_t g = 0; g < p.groups; ++g) {
        const int32_t *left = a + row * stride + g * words, *right = scratch.panel + g * words * kDotColumns;
        if constexpr (Chip == LowBitChip::plain) {
          plain::sums_of(rows, words, left, stride, right, tile);
#if defined(MDOPS_ISA_LEVEL_v4)
        } else if constexpr (Chip == LowBitChip::vnni) {
          vnni::sums_of(rows, words, left, stride, right, tile);
        } else {
          tile_sums(words, left, stride, right, tile);
#endif
        }
        for (int r = 0; r < rows; ++r)
          add_group(tile + r * kDotColumns, offset ? offset * sums[(row + r) * p.groups + g] : 0,
                    scratch.scale + g * kDotColumns, sum + r * kDotColumns, kDotColumns, g == 0);
      }
      if (p.groups == 0) std::memset(sum, 0, sizeof sum);
      for (int r = 0; r < rows; ++r) finish_row(p, row + r, first, sum + r * kDotColumns);
    }
  }
#if defined(MDOPS_ISA_LEVEL_v4)
  if (Chip == LowBitChip::amx) end_tiles();
#endif
}

#if defined(MDOPS_ISA_LEVEL_v4)
#include "lowbit/cpu_tiles.h"
#endif

// Float8.

constexpr int64_t kFloatDepth = 512;  // of B decoded at once
constexpr int64_t kFloatRows = 256;

struct FloatTable {
  float value[256];

  explicit FloatTable(LowBit kind) {
    for (uint32_t k = 0; k < 256; ++k) {
      const uint32_t bits = float32_bits_of_float8(k, mantissa_of(kind));
      std::memcpy(value + k, &bits, 4);
    }
  }
};

struct FloatScratch {
  Panels<float> b, c;
  float* sum;

  FloatScratch(void* memory, int64_t* bytes = nullptr) {
    Arena arena{static_cast<char*>(memory)};
    b = take_panels<float>(arena, kFloatDepth, kDotColumns);
    c = take_panels<float>(arena, kFloatRows, kDotColumns);
    sum = arena.take<float>(kFloatRows * kDotColumns);
    if (bytes) *bytes = arena.used;
  }
};

// The address of column n in a row of the panels.
MDOPS_HD float* at(const Panels<float>& panels, int64_t row, int64_t n) {
  const int64_t col = n / Panels<float>::kWide * Panels<float>::kWide;
  return panels.panel(col, row) + (n - col);
}

// Numbers [k, k + depth) of columns [first, first + columns) of B, the other columns zero.
void decode_panel(const LowBitProduct& p, const FloatTable& table, int64_t first, int64_t columns, int64_t k,
                  int64_t depth, const Panels<float>& to) {
  for (int64_t col = 0; col < to.cols; col += Panels<float>::kWide) {
    const int64_t width = to.width(col);
    float* out = to.panel(col);
    for (int64_t c = 0; c < width; ++c) {
      const int64_t n = col + c;
      const uint8_t* from = p.b + k * p.b_row + (first + n) * p.b_col;
      if (p.b_col == 1 && n < columns) continue;
      for (int64_t j = 0; j < depth; ++j)
        out[j * width + c] = n < columns ? table.value[from[j * p.b_row]] : 0.0f;
    }
    if (p.b_col != 1) continue;
    const int64_t end = columns - col < width ? columns - col : width;
    for (int64_t j = 0; j < depth; ++j) {
      const uint8_t* from = p.b + (k + j) * p.b_row + first + col;
      for (int64_t c = 0; c < end; ++c) out[j * width + c] = table.value[from[c]];
    }
  }
}

void float_pieces(const LowBitProduct& p, int64_t block, int64_t begin, int64_t end, const void* prepared,
                  void* memory) {
  const int64_t blocks = (p.rows + block - 1) / block;
  const float* a = static_cast<const float*>(prepared);
  const FloatTable table(p.b_kind);
  const FloatScratch scratch(memory);
  for (int64_t piece = begin; piece < end; ++piece) {
    const int64_t first = piece / blocks * kDotColumns, top = piece % blocks * block;
    const int64_t rows = top + block < p.rows ? block : p.rows - top;
    const int64_t columns = p.cols - first < kDotColumns ? p.cols - first : kDotColumns;
    std::memset(scratch.sum, 0, rows * kDotColumns * sizeof(float));
    for (int64_t g = 0; g < p.groups; ++g) {
      const int64_t last = p.first(g) + p.size(g);
      if (p.depth == 0) clear_from(scratch.c, 0);
      for (int64_t k = p.first(g); k < last; k += kFloatDepth) {
        const int64_t depth = last - k < kFloatDepth ? last - k : kFloatDepth;
        decode_panel(p, table, first, columns, k, depth, scratch.b);
        gemm(rows, depth, ByRow<float>{a + top * p.depth + k, p.depth}, scratch.b, scratch.c,
             k != p.first(g));
      }
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t n = 0; n < columns; ++n) {
          const float term = *at(scratch.c, r, n) * p.b_scale[p.b_step ? g * p.cols + first + n : 0];
          float& sum = scratch.sum[r * kDotColumns + n];
          sum = g == 0 ? term : sum + term;
        }
    }
    for (int64_t r = 0; r < rows; ++r) finish_row(p, top + r, first, scratch.sum + r * kDotColumns);
  }
}

}  // namespace

LowBitCut cut_product(const LowBitProduct& p, LowBitChip chip, int64_t threads) {
  LowBitCut cut{kDotColumns, kBlockRows, 0, 0};
  if (p.is_float()) {
    cut.block = kFloatRows;
    cut.prepared = p.rows * p.depth * static_cast<int64_t>(sizeof(float));
    FloatScratch(nullptr, &cut.scratch);
    return cut;
  }
#if defined(MDOPS_ISA_LEVEL_v4)
  if (chip == LowBitChip::tiles) return cut_tiles(p, threads);
#endif
  // All rows if each thread still gets a piece: panels of B are packed for each block.
  const int64_t panels = (p.cols + kDotColumns - 1) / kDotColumns;
  if (panels >= 2 * threads) cut.block = (p.rows + kBlockRows - 1) / kBlockRows * kBlockRows;
  cut.prepared = (is_in_place(p, chip) ? 0 : 4 * whole_rows(p) * row_words(p, chip)) +
                 (offset_of(p, chip) ? 4 * p.rows * p.groups : 0);
  Scratch(p, chip, nullptr, &cut.scratch);
  return cut;
}

void prepare_rows(const LowBitProduct& p, LowBitChip chip, int64_t begin, int64_t end, void* prepared) {
  if (p.is_float()) {
    const FloatTable table(p.a_kind);
    float* to = static_cast<float*>(prepared);
    for (int64_t k = begin * p.depth; k < end * p.depth; ++k) to[k] = table.value[p.a[k]];
    return;
  }
#if defined(MDOPS_ISA_LEVEL_v4)
  if (chip == LowBitChip::tiles) return prepare_tiles(p, 0, begin, end, prepared);
#endif
  const int64_t words = row_words(p, chip), filled = padded_group(p, chip);
  int32_t* sums = row_sums(p, chip, prepared);
  for (int64_t row = begin; row < end; ++row) {
    const int8_t* from = reinterpret_cast<const int8_t*>(p.a) + row * p.depth;
    int32_t* to = static_cast<int32_t*>(prepared) + row * words;
    for (int64_t g = 0; g < p.groups; ++g) {
      const int8_t* group = from + p.first(g);
      const int64_t size = p.size(g);
      if (chip == LowBitChip::plain) {
        int16_t* wide = reinterpret_cast<int16_t*>(to) + g * filled;
        for (int64_t k = 0; k < size; ++k) wide[k] = group[k];
        for (int64_t k = size; k < filled; ++k) wide[k] = 0;
      } else if (!is_in_place(p, chip)) {
        int8_t* bytes = reinterpret_cast<int8_t*>(to) + g * filled;
        std::memcpy(bytes, group, size);
        std::memset(bytes + size, 0, filled - size);
      }
      if (offset_of(p, chip)) {
        int32_t sum = 0;
        for (int64_t k = 0; k < size; ++k) sum += group[k];
        sums[row * p.groups + g] = sum;
      }
    }
  }
}

void multiply_pieces(const LowBitProduct& p, LowBitChip chip, const LowBitCut& cut, int64_t begin,
                     int64_t end, const void* prepared, void* scratch) {
  const int64_t block = cut.block;
  if (p.is_float()) return float_pieces(p, block, begin, end, prepared, scratch);
#if defined(MDOPS_ISA_LEVEL_v4)
  if (chip == LowBitChip::vnni)
    return integer_pieces<LowBitChip::vnni>(p, block, begin, end, prepared, scratch);
  if (chip == LowBitChip::amx)
    return integer_pieces<LowBitChip::amx>(p, block, begin, end, prepared, scratch);
  if (chip == LowBitChip::tiles) return tile_pieces(p, cut, begin, end, prepared, scratch);
#endif
  static_cast<void>(chip);
  integer_pieces<LowBitChip::plain>(p, block, begin, end, prepared, scratch);
}

// Unsigned numbers compare like integers, with NaN above all.
float largest(const float* x, int64_t n) {
  int32_t most = 0;
  for (int64_t k = 0; k < n; ++k) {
    int32_t bits;
    std::memcpy(&bits, x + k, 4);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  float result;
  std::memcpy(&result, &most, 4);
  return result;
}

void quantise_row(const float* x, int64_t n, const float* scale, int64_t step, float most, int8_t* values) {
  if (step == 0)
    for (int64_t k = 0; k < n; ++k) values[k] = quantised(x[k], *scale, most);
  else
    for (int64_t k = 0; k < n; ++k) values[k] = quantised(x[k], scale[k], most);
}

}  // namespace mdops::MDOPS_ISA
