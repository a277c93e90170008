// Low-bit numbers and their products, for the CPU and GPUs.
//
// A number is stored as a value of one byte or two bits times a scale, float32:
//
//   int8      -128 .. 127; quantised to -127 .. 127, scale = max|x| / 127
//   ternary   -1, 0, 1, four a byte along the depth, the first in the lowest bits, two's complement; scale =
//             mean|x| (BitNet b1.58, Ma et al., arXiv 2402.17764, eq. 1-3, without its epsilon)
//   e4m3      float8_e4m3fn, scale = max|x| / 448;  e5m2: float8_e5m2, scale = max|x| / 57344
//
// value = x / scale, rounded to the nearest, ties to even. Where all x are zero the scale is 1.
//
// A product C = A B sums the depth in groups. `sum` of group g of integers is exact (int32); then, each
// operation rounded to float32 and no two of them fused,
//
//   C[m, n] = (((sum_0 b_scale[0, n] + sum_1 b_scale[1, n]) + sum_2 b_scale[2, n]) + ...) a_scale[m]
#pragma once

#include <cmath>
#include <cstdint>

#include "common/math.h"

namespace mdops {

enum class LowBit : int { int8, ternary, e4m3, e5m2 };
enum class LowBitOut : int { float32, bfloat16, float16 };

// Groups of int8 products of this depth always fit into 32 bits; ternary ones 128 times as deep.
constexpr int64_t kMostInt8Depth = (int64_t{1} << 17) - 1;
constexpr int64_t kMostTernaryDepth = (int64_t{1} << 23) - 1;

// The largest value after scaling.
MDOPS_HD float most_of(LowBit kind) {
  return kind == LowBit::int8 ? 127.0f : kind == LowBit::e4m3 ? 448.0f : 57344.0f;
}

MDOPS_HD float scale_or_one(float scale) {
  return scale == 0 ? 1.0f : scale;
}

// x / scale as an integer of at most `most`; 0 for NaN, which the scale then has.
MDOPS_HD int8_t quantised(float x, float scale, float most) {
  const float value = rintf(x / scale);
  return static_cast<int8_t>(value >= most ? most : value <= -most ? -most : value == value ? value : 0.0f);
}

// Element k of four in a byte. Code 2 is not a ternary number and counts as -2.
MDOPS_HD int8_t ternary_of(uint8_t packed, int k) {
  return static_cast<int8_t>(static_cast<int8_t>(packed << (6 - 2 * k)) >> 6);
}

// float32 in bits of float16 and bfloat16, ties to even; NaN stays NaN.
MDOPS_HD uint16_t bfloat16_bits(uint32_t x) {
  if ((x & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(x >> 16 | 0x40);
  return static_cast<uint16_t>((x + 0x7fff + (x >> 16 & 1)) >> 16);
}
MDOPS_HD uint16_t float16_bits(uint32_t x) {
  const uint32_t sign = x >> 16 & 0x8000, size = x & 0x7fffffffu;
  if (size > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00);
  if (size >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and more
  if (size >= 0x38800000u)
    return static_cast<uint16_t>(sign | ((size - 0x38000000u + 0xfff + (size >> 13 & 1)) >> 13));
  if (size < 0x33000000u) return static_cast<uint16_t>(sign);  // below half of the smallest
  // Subnormal: the number in units of 2^-24.
  const uint32_t shift = 126 - (size >> 23), bits = (size & 0x7fffff) | 0x800000;
  const uint32_t half = 1u << (shift - 1), kept = bits >> shift, rest = bits & ((1u << shift) - 1);
  return static_cast<uint16_t>(sign | (kept + (rest > half || (rest == half && (kept & 1)))));
}

// The values of float8 by their bits.
MDOPS_HD uint32_t float32_bits_of_float8(uint32_t x, int mantissa) {
  const int exponents = 7 - mantissa, bias = (1 << (exponents - 1)) - 1;
  const uint32_t sign = (x & 0x80) << 24, size = x & 0x7f;
  const uint32_t exponent = size >> mantissa, fraction = size & ((1u << mantissa) - 1);
  if (mantissa == 3 && size == 0x7f) return sign | 0x7fc00000u;
  if (mantissa == 2 && exponent == 31) return sign | 0x7f800000u | (fraction ? 0x400000u : 0u);
  if (exponent == 0) {
    if (fraction == 0) return sign;
    int up = 0;
    while (!(fraction << up >> mantissa)) ++up;
    return sign | static_cast<uint32_t>(128 - bias - up) << 23 |
           ((fraction << up) & ((1u << mantissa) - 1)) << (23 - mantissa);
  }
  return sign | (exponent + 127 - bias) << 23 | fraction << (23 - mantissa);
}
MDOPS_HD int mantissa_of(LowBit kind) {
  return kind == LowBit::e4m3 ? 3 : 2;
}

}  // namespace mdops
