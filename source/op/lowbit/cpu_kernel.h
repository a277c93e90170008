// The loops of low-bit products and of quantisation on the CPU, compiled for each instruction set.
#pragma once

#include "common/isa.h"
#include "lowbit/lowbit.h"

namespace mdops {

// The inputs of a product. `a` is in rows of `depth` bytes; element (k, n) of B is b[k b_row + n b_col]; for
// ternary, k counts bytes. A scale has a step of 0 if there is only one.
struct LowBitProduct {
  LowBit a_kind, b_kind;
  LowBitOut out_kind;
  const uint8_t *a, *b;
  int64_t b_row, b_col;
  int64_t rows, cols, depth, groups, group;  // group: the depth of one; the last may be shorter
  const float *a_scale, *b_scale;
  int64_t a_step, b_step;
  void* out;

  bool is_float() const { return a_kind == LowBit::e4m3 || a_kind == LowBit::e5m2; }
  int64_t first(int64_t g) const { return g * group; }
  int64_t size(int64_t g) const { return depth - first(g) < group ? depth - first(g) : group; }
};

// How a kernel splits its work among threads: columns of C and rows of a piece, bytes of the prepared A (0:
// used in place), bytes of scratch memory a thread. `chip` says which of the processor's features beyond its
// level may be used.
struct LowBitCut {
  int64_t panel, block, prepared, scratch;
};
enum class LowBitChip : int { plain, vnni, amx, tiles };

MDOPS_DECLARE_KERNEL(LowBitCut cut_product(const LowBitProduct& product, LowBitChip chip, int64_t threads))

// Writes rows [begin, end) of A in the kernel's form to `prepared`.
MDOPS_DECLARE_KERNEL(void prepare_rows(const LowBitProduct& product, LowBitChip chip, int64_t begin,
                                       int64_t end, void* prepared))

// Pieces [begin, end) of the product; piece p is block p % blocks of panel p / blocks.
MDOPS_DECLARE_KERNEL(void multiply_pieces(const LowBitProduct& product, LowBitChip chip, const LowBitCut& cut,
                                          int64_t begin, int64_t end, const void* prepared, void* scratch))

// max|x| and sum|x| of n numbers, `stride` apart; NaN if one is.
MDOPS_DECLARE_KERNEL(float largest(const float* x, int64_t n))
MDOPS_DECLARE_KERNEL(void quantise_row(const float* x, int64_t n, const float* scale, int64_t step,
                                       float most, int8_t* values))

}  // namespace mdops
