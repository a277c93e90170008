// Numbers of a matrix product as parts of float16 (gpu_shape.h says why), and a row of the net's input.
#pragma once

#include <cuda_fp16.h>

#include "common/rows.h"
#include "gemm/gpu_shape.h"

namespace mdops {

// 2^(kLargest - floor(log2 largest)), within the range of float32.
MDOPS_D float scale_for(float largest) {
  const int exponent = (__float_as_int(largest) >> 23) - 127;
  const int power = kLargest - (largest > 0 ? exponent : 0);
  return __int_as_float((min(max(power, -100), 100) + 127) << 23);
}

// The inverse of a power of two.
MDOPS_D float inverse_power(float scale) {
  return __int_as_float((254 << 23) - __float_as_int(scale));
}

MDOPS_D uint32_t pack_halves(float a, float b) {
  const __half2 pair = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Two numbers as their high halves and, if there are two parts, their low halves.
template <int Parts>
MDOPS_D void split(float a, float b, uint32_t (&parts)[Parts]) {
  const __half2 high = __floats2half2_rn(a, b);
  parts[0] = *reinterpret_cast<const uint32_t*>(&high);
  if constexpr (Parts == 2) {
    const float2 back = __half22float2(high);
    parts[1] = pack_halves(a - back.x, b - back.y);
  }
}

// The same for four numbers, in memory order.
template <int Parts>
MDOPS_D void split(float4 x, uint2 (&parts)[Parts]) {
  uint32_t first[Parts], second[Parts];
  split(x.x, x.y, first);
  split(x.z, x.w, second);
#pragma unroll
  for (int k = 0; k < Parts; ++k) parts[k] = make_uint2(first[k], second[k]);
}

// A lane's four rows of a column of B: those of the first register of a tensor-core instruction, then of the
// second, for each part.
template <int Parts>
struct alignas(8 * Parts) Fragment {
  uint32_t part[Parts][2];
};

// Stores sixteen bytes to device memory at once; else the compiler makes four stores.
MDOPS_D void store_four(float* to, float a, float b, float c, float d) {
  __stcg(reinterpret_cast<float4*>(to), make_float4(a, b, c, d));
}

// Writes a row of the net's input to memory: as floats, row by row, if `Parts` is 0; or for the chain
// (gpu_chain.h), times a power of two from a bound of the row's numbers, in `Parts` parts of float16: by
// tiles of rows, and in these by blocks of unit_depth(Parts) columns. A tile's gradient uses the same memory,
// so that a block overwrites only its own input.
template <int Parts>
struct InputRow {
  char* to;
  float scale;
  int in_tile, tile_rows;

  MDOPS_D InputRow(float* inputs, int columns, int tile_rows, int64_t row, float bound)
      : scale(scale_for(bound)),
        in_tile(Parts ? static_cast<int>(row % tile_rows) : 0),
        tile_rows(tile_rows) {
    to = reinterpret_cast<char*>(inputs + (row - in_tile) * columns);
  }
  // Numbers k .. k + 3, k a multiple of four.
  MDOPS_D void store(int k, float a, float b, float c, float d) const {
    if constexpr (Parts > 0) {
      constexpr int depth = unit_depth(Parts);
      uint2 parts[Parts];
      split(make_float4(scale * a, scale * b, scale * c, scale * d), parts);
      char* const block = to + k / depth * (tile_rows * kWideRow);
#pragma unroll
      for (int part = 0; part < Parts; ++part)
        __stcg(reinterpret_cast<uint2*>(block + wide_place(in_tile, k % depth, part)), parts[part]);
    } else {
      store_four(reinterpret_cast<float*>(to) + k, a, b, c, d);
    }
  }
};

}  // namespace mdops
