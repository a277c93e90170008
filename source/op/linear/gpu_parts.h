// Products of float32 to its own accuracy on Hopper's tensor cores: the parts that gpu_rows.h and gpu_tiles.h
// share.
//
// Each number is the sum of two TF32, 11 bits each: a b is then three products (that of the two small parts
// is below 2^-24 of the whole). A warpgroup has 64 rows of C and up to 64 columns. A's numbers go from memory
// straight to the registers of the lanes that multiply them, rows l / 4 and l / 4 + 8 of a warp's 16. B's
// columns are in shared memory as swizzled rows of 128 bytes, 32 of the depth, high and low parts separate.
//
// An instruction may take any numbers of the depth, if they are the same for A and B: of each eight, place t
// is number 2 t and place t + 4 the next. With contiguous depth they are one read. Tensor cores round every
// sum towards zero: so a stage's sums begin at zero, with the small products first, and are added to the rest
// in float32.
#pragma once

#include "common/gpu.h"
#include "common/gpu_split.h"
#include "common/gpu_unroll.h"
#include "common/gpu_wgmma.h"
#include "common/rows.h"
#include "linear/gpu_matrix.h"

namespace mdops::gpu_linear {

constexpr int kAlignment = 1024, kGroup = 128, kGroupRows = 64;
constexpr int kRow = 32, kRowEights = kRow / 8;  // numbers of B in 128 bytes

// One number, or two side by side, or zeros; volatile, so that the load is issued here.
MDOPS_D float load_one(const float* from, bool in_bounds) {
  float x;
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %2, 0;\nmov.f32 %0, 0f00000000;\n"
      "@there ld.global.nc.f32 %0, [%1];\n}"
      : "=f"(x)
      : "l"(from), "r"(static_cast<int>(in_bounds)));
  return x;
}

MDOPS_D float2 load_two(const float* from, bool in_bounds) {
  float2 both;
  asm volatile(
      "{\n.reg .pred there;\nsetp.ne.b32 there, %3, 0;\nmov.f32 %0, 0f00000000;\nmov.f32 %1, 0f00000000;\n"
      "@there ld.global.nc.v2.f32 {%0, %1}, [%2];\n}"
      : "=f"(both.x), "=f"(both.y)
      : "l"(from), "r"(static_cast<int>(in_bounds)));
  return both;
}

// A lane's share of a warp's 16 rows of A, for kEights eights of the depth: two numbers of rows g and g + 8
// each.
template <int kEights>
struct RowsOfA {
  float2 numbers[kEights][2];
};

template <int kEights>
struct SplitRows {
  uint32_t high[kEights][4], low[kEights][4];

  MDOPS_D explicit SplitRows(const RowsOfA<kEights>& rows) {
    unrolled<kEights, 2>([&](int eight, int h) {
      const Split first = split(rows.numbers[eight][h].x), second = split(rows.numbers[eight][h].y);
      high[eight][h] = first.high, low[eight][h] = first.low;
      high[eight][h + 2] = second.high, low[eight][h + 2] = second.low;
    });
  }
};

// Splits numbers 2 t and 2 t + 1 of an eight to where products read them: `row` is that of B's column n, the
// low parts are `low` floats after the high ones.
MDOPS_D void split_pair(float* row, int low, int eight, int n, int t, float2 both) {
  const Split first = split(both.x), second = split(both.y);
  const int place = 4 * ((2 * eight) ^ n % 8) + t, next = 4 * ((2 * eight + 1) ^ n % 8) + t;
  row[place] = __uint_as_float(first.high), row[low + place] = __uint_as_float(first.low);
  row[next] = __uint_as_float(second.high), row[low + next] = __uint_as_float(second.low);
}

// d (+)= A B, 64 x 8 times 8 x 8 kUnits: each warp has 16 rows of A and of d in registers, as in m16n8k8.
template <int kUnits>
MDOPS_D void multiply_add(float (&d)[kUnits][4], const uint32_t (&a)[4], uint64_t b, bool add) {
  static_assert(kUnits == 8 || kUnits == 7);
  if constexpr (kUnits == 8)
    MDOPS_ON_HOPPER(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" MDOPS_REGISTERS_32
        "}, {%32, %33, %34, %35}, %36, add, 1, 1;\n}" : MDOPS_4_UNITS(0),
        MDOPS_4_UNITS(4) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
  else
    MDOPS_ON_HOPPER(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %33, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n56k8.f32.tf32.tf32 {" MDOPS_REGISTERS_28
        "}, {%28, %29, %30, %31}, %32, add, 1, "
        "1;\n}" : MDOPS_4_UNITS(0),
        MDOPS_UNIT(4), MDOPS_UNIT(5), MDOPS_UNIT(6) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(add)));
}

// Starts the products of a stage's first eights, into separate sums.
template <int count, int kEights, int kUnits>
MDOPS_D void begin_stage(float (&now)[kUnits][4], const SplitRows<kEights>& a, uint64_t high_b,
                         uint64_t low_b) {
  begin_products();
  unrolled<count>([&](int eight) {
    multiply_add(now, a.low[eight], high_b + 2 * eight, eight > 0);
    multiply_add(now, a.high[eight], low_b + 2 * eight, true);
  });
  unrolled<count>([&](int eight) { multiply_add(now, a.high[eight], high_b + 2 * eight, true); });
  commit_products();
}

// c += the stage's sums.
template <int kUnits>
MDOPS_D void finish_stage(float (&c)[kUnits][4], float (&now)[kUnits][4]) {
  wait_for_products<0>();
  fence_operands(now);
  unrolled<kUnits, 4>([&](int n, int k) { c[n][k] += now[n][k]; });
}

// Stores C with the bias, which may be null; `row` and `column` are the warp's in C, `line` is the stride of
// C's rows.
template <int kUnits>
MDOPS_D void store(const float (&c)[kUnits][4], const float* bias, float* to, int64_t line, int64_t rows,
                   int64_t columns, int64_t row, int64_t column) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool pairs = columns % 2 == 0 && line % 2 == 0;
  unrolled<kUnits>([&](int n) {
    const int64_t at = column + 8 * n + 2 * t;
    const bool first = at < columns, second = at + 1 < columns;
    const float b0 = bias && first ? bias[at] : 0.f, b1 = bias && second ? bias[at + 1] : 0.f;
    unrolled<2>([&](int h) {
      const int64_t own_row = row + 8 * h + g;
      if (own_row >= rows || !first) return;
      float* place = to + own_row * line + at;
      const float2 own{c[n][2 * h] + b0, c[n][2 * h + 1] + b1};
      if (pairs) {
        *reinterpret_cast<float2*>(place) = own;
      } else {
        place[0] = own.x;
        if (second) place[1] = own.y;
      }
    });
  });
}

}  // namespace mdops::gpu_linear
