// Matrix products of float32 numbers by a CPU's bfloat16 units: AMX's tiles, or AVX512-BF16.
//
// A number is a sum of bfloat16 parts, x = high + low with 16 bits of it. Of (high + low)(high + low) the
// product low low is left out: three products, whose sums are float32. With one part, the high one, the
// numbers keep 8 bits.
//
// The left factor is packed once, in tiles of 16 rows and 32 of the depth,
//
//   [row / 16][k / 32][part][row % 16][k % 32],
//
// zero beyond its edges. The right factor, a layer's numbers with an atom a lane, is split on the way: of 16
// lanes each two rows of the depth stand side by side,
//
//   [k / 32][part][k % 32 / 2][lane][k % 2],
//
// which is how both kinds of units take it.
#pragma once

#include <cstdint>
#include <cstring>

namespace mdops {

constexpr int kBf16Rows = 16, kBf16Depth = 32, kBf16Lanes = 16, kBf16Tile = kBf16Rows * kBf16Depth;

inline int64_t bf16_size(int64_t rows, int64_t depth, int parts) {
  return (rows + kBf16Rows - 1) / kBf16Rows * ((depth + kBf16Depth - 1) / kBf16Depth) * kBf16Tile * parts;
}

// The nearest bfloat16, to even; what is no number stays none.
inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float from_bf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

// Packs a matrix, whose numbers are at(row, k), and returns what follows it.
template <class At>
inline uint16_t* pack_bf16(int64_t rows, int64_t depth, int parts, const At& at, uint16_t* to) {
  for (int64_t row = 0; row < rows; row += kBf16Rows)
    for (int64_t from = 0; from < depth; from += kBf16Depth, to += kBf16Tile * parts)
      for (int r = 0; r < kBf16Rows; ++r)
        for (int k = 0; k < kBf16Depth; ++k) {
          const float x = row + r < rows && from + k < depth ? at(row + r, from + k) : 0.0f;
          uint16_t* const place = to + r * kBf16Depth + k;
          place[0] = to_bf16(x);
          if (parts == 2) place[kBf16Tile] = to_bf16(x - from_bf16(place[0]));
        }
  return to;
}

// Panels of float32 numbers (common/panels.h) as they are handed from one instruction set to another.
struct Bf16Panels {
  float* base;
  int64_t rows, cols, first;
  int64_t panel;  // columns of a whole panel
};

// C (rows, lanes) (+)= A B, for the packed A.
using Bf16Multiply = void (*)(const uint16_t* a, int parts, int64_t rows, int64_t depth, const Bf16Panels& b,
                              const Bf16Panels& c, bool accumulate);

// The units of this processor: "amx", "avx512_bf16", or "" for none; MDOPS_CPU_BF16 chooses among them, or
// "none". The kernel for them; null without any.
const char* bf16_units();
Bf16Multiply bf16_multiply();

// The packed matrices of a net. Those of the first layer come in groups of features, one after the other.
struct Bf16Net {
  Bf16Multiply multiply;
  int parts;
  const uint16_t *groups_up, *groups_down, *extra_up;
  const uint16_t *up[17], *down[17];  // of the layers after the first (kMaxLayers)
};

#if defined(__x86_64__)
namespace isa_amx {
void multiply_bf16(const uint16_t* a, int parts, int64_t rows, int64_t depth, const Bf16Panels& b,
                   const Bf16Panels& c, bool accumulate);
}
namespace isa_avx512_bf16 {
void multiply_bf16(const uint16_t* a, int parts, int64_t rows, int64_t depth, const Bf16Panels& b,
                   const Bf16Panels& c, bool accumulate);
}
#endif

}  // namespace mdops
