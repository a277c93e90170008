// Matrix products of float32 numbers by a CPU's bfloat16 units: AMX's tiles, or AVX512-BF16.
//
// A number is a sum of bfloat16 parts, x = high + low with 16 bits of it. The product low low of
// (high + low)(high + low) is omitted: three products, whose sums are float32. With one part, the high one,
// the numbers keep 8 bits; with three, and six of their products, all 24.
//
// The left factor is packed once, in tiles of 16 rows and 32 of the depth,
//
//   [row / 16][k / 32][part][row % 16][k % 32],
//
// zero beyond its edges. The right factor, a layer's numbers with an atom a lane, is split once for all
// its products: for 16 lanes, each two rows of the depth are interleaved,
//
//   [lane / 16][k / 32][part][k % 32 / 2][lane % 16][k % 2],
//
// the layout that both kinds of units read.
#pragma once

#include <cstdint>

namespace mdops {

constexpr int kBf16Rows = 16, kBf16Depth = 32, kBf16Lanes = 16, kBf16Tile = kBf16Rows * kBf16Depth;

inline int64_t bf16_size(int64_t rows, int64_t depth, int parts) {
  return (rows + kBf16Rows - 1) / kBf16Rows * ((depth + kBf16Depth - 1) / kBf16Depth) * kBf16Tile * parts;
}

// Panels of float32 numbers (common/panels.h), to pass from one instruction set to another.
struct Bf16Panels {
  float* base;
  int64_t rows, cols, first;
  int64_t panel;  // columns of a whole panel
};

// A left factor's tiles and a split right factor: a product's whole depth, or a piece of it.
struct Bf16Piece {
  const uint16_t *a, *b;
  int64_t depth;
};

// Weights (inputs, outputs) as a left factor: unchanged (rows: inputs), or transposed in forward passes.
struct Bf16Weights {
  const float* weights;
  int64_t inputs, outputs;
  bool up;

  int64_t rows() const { return up ? outputs : inputs; }
  int64_t depth() const { return up ? inputs : outputs; }
  int64_t tiles() const {
    return (rows() + kBf16Rows - 1) / kBf16Rows * ((depth() + kBf16Depth - 1) / kBf16Depth);
  }
};

// The functions of a kind of units. Sizes in elements are bf16_size(), for a right factor with lanes as rows.
struct Bf16Units {
  const char* name;
  int64_t at_once;  // the features of the first layer that are multiplied at once, or one group: kBf16AtOnce
                    // at most
  // Splits a right factor, the first `depth` rows of panels of whole tiles of lanes.
  void (*split)(const Bf16Panels& from, int64_t depth, int parts, uint16_t* to);
  // The same from `count` rows of `depth` numbers, `stride` apart, a row a lane; zero in the other lanes.
  void (*split_rows)(const float* from, int64_t stride, int64_t count, int64_t depth, int64_t lanes,
                     int parts, uint16_t* to);
  // C (rows, lanes) (+)= sum over the pieces of A B.
  void (*multiply)(const Bf16Piece* pieces, int count, int parts, int64_t rows, const Bf16Panels& c,
                   bool accumulate);
  // Packs tiles [begin, end) of a left factor.
  void (*pack)(const Bf16Weights& from, int64_t begin, int64_t end, int parts, uint16_t* to);
};

// This processor's units, "amx" or "avx512_bf16", or null for none; MDOPS_CPU_BF16 selects one of them, or
// "none".
const Bf16Units* bf16_units();

// The packed matrices of a net. Those of the first layer are in groups of features, in order.
struct Bf16Net {
  const Bf16Units* units;
  int parts;
  const uint16_t *groups_up, *groups_down, *extra_up;
  const uint16_t *up[17], *down[17];  // of the layers after the first (kMaxLayers)
};

constexpr int64_t kBf16AtOnce = 256;

#if defined(__x86_64__)
namespace isa_amx {
extern const Bf16Units bf16_units;
}
namespace isa_avx512_bf16 {
extern const Bf16Units bf16_units;
}
#endif

}  // namespace mdops
