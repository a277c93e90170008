// Tiles of attention's operands in shared memory, as parts of 16 bits, and products of them.
//
// Tensors of float16 and bfloat16 are one part, unchanged. Those of float32 are two parts of float16, three
// products for one, 22 bits; or one, 11 bits, as in the layers of a net (gemm/gpu_shape.h). 16 rows of a
// tensor share a power of two, which scales the largest of their numbers to 2^12 .. 2^13.
//
// A row of a tile is D numbers (16, 32, 64 or 128; zeros after the head's width), pieces of 16 bytes, which
// stand so that eight rows' pieces of one column, as `ldmatrix` reads them, lie in different banks:
//
//   128 or 64 numbers: piece c of row r in place c ^ (r % 8); 32: c ^ (r / 2 % 4), 2 rows sharing the banks;
//   16: c ^ (r / 4 % 2)
#pragma once

#include "attention/gpu_instructions.h"
#include "common/gpu_unroll.h"

namespace mdops::gpu_attention {

constexpr int kGroup = 16;  // rows that share a scale: the depth of one product
constexpr int kBlockRow = 128, kBlockColumns = kBlockRow / 2;  // of a block for products of warpgroups: bytes

// The offset of piece `piece` of a row in a part.
template <int D>
MDOPS_HD constexpr int piece_place(int row, int piece) {
  constexpr int pieces = D / 8, apart = pieces >= 8 ? 1 : 8 / pieces, turns = pieces >= 8 ? 8 : pieces;
  return row * 2 * D + 16 * (piece ^ (row / apart % turns));
}

// How tensors of T are multiplied.
template <class T, int Parts_>
struct Numbers {
  static constexpr int kParts = Parts_;
  static constexpr bool kSplit = std::is_same_v<T, float>;  // split on the way to shared memory, with scales
  static constexpr bool kBfloat = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kSplit || kParts == 1);
};

// The largest finite magnitude so far, by its bits: infinity and NaN must not hide the others.
MDOPS_D uint32_t larger(uint32_t so_far, float x) {
  const uint32_t bits = __float_as_uint(x) & 0x7fffffffu;
  return bits < 0x7f800000u && bits > so_far ? bits : so_far;
}

// The largest of number(0) .. number(Count - 1): excludes infinity and NaN only if there are any.
template <int Count, class F>
MDOPS_D uint32_t largest_of(const F& number) {
  float most = 0;
#pragma unroll
  for (int k = 0; k < Count; ++k) most = fmaxf(most, fabsf(number(k)));
  uint32_t bits = __float_as_uint(most);
  if (bits < 0x7f800000u) return bits;
  bits = 0;
#pragma unroll
  for (int k = 0; k < Count; ++k) bits = larger(bits, number(k));
  return bits;
}
template <int Size>
MDOPS_D uint32_t largest_of(const float (&x)[Size]) {
  return largest_of<Size>([&](int k) { return x[k]; });
}

MDOPS_D float scale_of_bits(uint32_t bits) {
  return scale_for(__uint_as_float(bits));
}

// Two numbers as parts.
template <class N>
MDOPS_D void split_pair(float a, float b, uint32_t (&parts)[N::kParts]) {
  if constexpr (N::kBfloat) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    parts[0] = *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    split(a, b, parts);
  }
}

// c += A B of all parts: the small products first.
template <class N>
MDOPS_D void multiply_parts(float (&c)[4], const uint32_t (&a)[N::kParts][4],
                            const uint32_t (&b)[N::kParts][4], int half) {
  if constexpr (N::kParts == 2) {
    multiply_16<false>(c, a[1], b[0][2 * half], b[0][2 * half + 1]);
    multiply_16<false>(c, a[0], b[1][2 * half], b[1][2 * half + 1]);
  }
  multiply_16<N::kBfloat>(c, a[0], b[0][2 * half], b[0][2 * half + 1]);
}

// Rows of one head in a tensor (rows, heads, width), from a given row on.
template <class T>
struct RowsOf {
  const T* first;
  int64_t stride;
  int width;
  bool wide;  // whether 16 bytes may be read at once

  // Member by member: a choice between objects would put both on the stack.
  MDOPS_D RowsOf or_else(bool other, const RowsOf& o) const {
    return {other ? o.first : first, other ? o.stride : stride, other ? o.width : width,
            other ? o.wide : wide};
  }
};

// Two adjacent numbers of a row, aligned for one read.
MDOPS_D float2 two_numbers(const float* at) {
  return *reinterpret_cast<const float2*>(at);
}
MDOPS_D float2 two_numbers(const __nv_bfloat16* at) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
}
MDOPS_D float2 two_numbers(const __half* at) {
  return __half22float2(*reinterpret_cast<const __half2*>(at));
}

// Eight numbers of a row, zeros after the width.
template <class T>
struct Eight {
  static constexpr int kEach = 16 / sizeof(T);
  uint4 bits[8 / kEach];

  // Sixteen bytes at once. No branches: several loads must run at once.
  MDOPS_D void load_wide(const RowsOf<T>& from, int row, bool in_bounds, int column) {
    const T* at = from.first + row * from.stride + column;
#pragma unroll
    for (int k = 0; k < 8 / kEach; ++k) {
      bits[k] = make_uint4(0, 0, 0, 0);
      if (in_bounds && column + k * kEach < from.width)
        bits[k] = *reinterpret_cast<const uint4*>(at + k * kEach);
    }
  }
  MDOPS_D void load_narrow(const RowsOf<T>& from, int row, bool in_bounds, int column) {
    const T* at = from.first + row * from.stride + column;
#pragma unroll
    for (int k = 0; k < 8 / kEach; ++k) {
      T x[kEach] = {};
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (in_bounds && column + k * kEach + i < from.width) x[i] = at[k * kEach + i];
      bits[k] = pack(x);
    }
  }
  MDOPS_D float number_at(int k) const {
    constexpr int each = kEach;
    const uint4& four = bits[k / each];
    const uint32_t word[4] = {four.x, four.y, four.z, four.w};
    if constexpr (sizeof(T) == 4) {
      return __uint_as_float(word[k % each]);
    } else {
      const uint32_t half = word[k % each / 2] >> 16 * (k % 2) & 0xffff;
      if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __uint_as_float(half << 16);
      else
        return __half2float(__ushort_as_half(static_cast<unsigned short>(half)));
    }
  }

 private:
  static MDOPS_D uint32_t bits_of(float x) { return __float_as_uint(x); }
  static MDOPS_D uint32_t bits_of(__half x) { return __half_as_ushort(x); }
  static MDOPS_D uint32_t bits_of(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
  template <int Each>
  static MDOPS_D uint4 pack(const T (&x)[Each]) {
    uint32_t word[4];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      word[k] = Each == 4 ? bits_of(x[k]) : bits_of(x[2 * k % Each]) | bits_of(x[(2 * k + 1) % Each]) << 16;
    return make_uint4(word[0], word[1], word[2], word[3]);
  }
};

// Stores eight numbers as parts, `apart` bytes from one part to the next.
template <class N, class T>
MDOPS_D void store_eight(const Eight<T>& x, float scale, char* at, int apart) {
  if constexpr (N::kSplit) {
    uint32_t pair[4][N::kParts];
#pragma unroll
    for (int k = 0; k < 4; ++k)
      split_pair<N>(scale * x.number_at(2 * k), scale * x.number_at(2 * k + 1), pair[k]);
#pragma unroll
    for (int part = 0; part < N::kParts; ++part)
      *reinterpret_cast<uint4*>(at + part * apart) =
          make_uint4(pair[0][part], pair[1][part], pair[2][part], pair[3][part]);
  } else {
    *reinterpret_cast<uint4*>(at) = x.bits[0];
  }
}

// What one warp loads of 16 rows: lane l has pieces l, l + 32, ... of them. There are two steps, so that
// loads from device memory start before anything waits for them.
template <class T, int D>
struct GroupLoad {
  static constexpr int kPieces = D / 8, kEach = kGroup * kPieces / kWarp;
  Eight<T> eight[kEach];

  static MDOPS_D int row_of(int i) { return (i * kWarp + lane_index()) / kPieces; }
  static MDOPS_D int piece_of(int i) { return (i * kWarp + lane_index()) % kPieces; }

  // `rows` of the 16 exist.
  MDOPS_D void load(const RowsOf<T>& from, int first, int rows) {
    if (from.wide) {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        eight[i].load_wide(from, first + row_of(i), row_of(i) < rows, 8 * piece_of(i));
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        eight[i].load_narrow(from, first + row_of(i), row_of(i) < rows, 8 * piece_of(i));
    }
  }

  // Stores as parts, `apart` bytes from one to the next, each piece at place(row, piece). Returns the factor
  // of products with these rows: 0 if they are zeros.
  template <class N, class Place>
  MDOPS_D float store_at(int apart, const Place& place) const {
    float scale = 1;
    bool zeros = false;
    if constexpr (N::kSplit) {
      const uint32_t largest =
          warp_largest(largest_of<8 * kEach>([&](int k) { return eight[k / 8].number_at(k % 8); }));
      scale = scale_of_bits(largest), zeros = largest == 0;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) store_eight<N>(eight[i], scale, place(row_of(i), piece_of(i)), apart);
    return zeros ? 0.0f : inverse_power(scale);
  }
  // The same in a tile whose row 0 (a multiple of 16) is at `to`.
  template <class N>
  MDOPS_D float store(char* to, int apart) const {
    return store_at<N>(apart, [&](int row, int piece) { return to + piece_place<D>(row, piece); });
  }
};

// One warp loads 16 rows into a tile, and the factor of products with them. Numbers without splitting come by
// copies that `wait_for_copies` waits for.
template <class T, class N, int D, class Place>
MDOPS_D void bring_group(int apart, const RowsOf<T>& from, int first, int rows, float* inverse,
                         const Place& place) {
  using Load = GroupLoad<T, D>;
  if constexpr (!N::kSplit) {
    if (from.wide) {
#pragma unroll
      for (int i = 0; i < Load::kEach; ++i) {
        const int row = Load::row_of(i), column = 8 * Load::piece_of(i);
        const bool in_bounds = row < rows && column < from.width;
        copy_to_shared<16>(place(row, Load::piece_of(i)),
                           in_bounds ? from.first + (first + row) * from.stride + column : from.first,
                           in_bounds);
      }
      return;
    }
  }
  Load load;
  load.load(from, first, rows);
  const float scale = load.template store_at<N>(apart, place);
  if (N::kSplit && lane_index() == 0) *inverse = scale;
}
// The same in a tile whose row 0 (a multiple of 16) is at `to`.
template <class T, class N, int D>
MDOPS_D void bring_group(char* to, int apart, const RowsOf<T>& from, int first, int rows, float* inverse) {
  bring_group<T, N, D>(apart, from, first, rows, inverse,
                       [&](int row, int piece) { return to + piece_place<D>(row, piece); });
}

// The inverse scale of a group.
template <class N>
MDOPS_D float inverse_of(const float* inverse) {
  return N::kSplit ? *inverse : 1.0f;
}

// Lane l's address for `load_four` of 16 x 16 numbers from `row` and `column` on: A operand of rows, or
// transposed: B operand with rows as its depth.
template <int D>
MDOPS_D int place_by_rows(int row, int column) {
  return piece_place<D>(row + lane_index() % 16, column / 8 + lane_index() / 16);
}
// B operand with rows as its columns, or transposed: A operand with rows as its depth.
template <int D>
MDOPS_D int place_by_columns(int row, int column) {
  return piece_place<D>(row + lane_index() % 8 + lane_index() / 16 * 8, column / 8 + lane_index() / 8 % 2);
}

template <class N>
MDOPS_D void load_parts(uint32_t (&r)[N::kParts][4], const char* tile, int apart, int place) {
#pragma unroll
  for (int part = 0; part < N::kParts; ++part)
    load_matrices(r[part], shared_address(tile + part * apart + place));
}
template <class N>
MDOPS_D void load_parts_transposed(uint32_t (&r)[N::kParts][4], const char* tile, int apart, int place) {
#pragma unroll
  for (int part = 0; part < N::kParts; ++part)
    load_transposed(r[part], shared_address(tile + part * apart + place));
}

// Sums of a product, two units of 16 x 8, as the A operand of another of depth 16: times a power of two.
template <class N>
MDOPS_D void as_operand(const float (&first)[4], const float (&second)[4], float scale,
                        uint32_t (&a)[N::kParts][4]) {
  uint32_t pair[4][N::kParts];
  split_pair<N>(scale * first[0], scale * first[1], pair[0]);
  split_pair<N>(scale * first[2], scale * first[3], pair[1]);
  split_pair<N>(scale * second[0], scale * second[1], pair[2]);
  split_pair<N>(scale * second[2], scale * second[3], pair[3]);
  unrolled<N::kParts, 4>([&](int part, int k) { a[part][k] = pair[k][part]; });
}

// The power of two that scales the warp's numbers before splitting; bfloat16 has the range of float32.
template <class N, int Units>
MDOPS_D float scale_of_units(const float (&x)[Units][4]) {
  if constexpr (N::kBfloat) return 1;
  return scale_of_bits(warp_largest(largest_of<4 * Units>([&](int k) { return x[k / 4][k % 4]; })));
}

// sum[n] += factor A B for a step of depth 16 and all D columns of B, whose depth are the rows of a tile.
// Tensor cores round sums towards zero, so sums over many steps are made outside of them if numbers are
// split.
template <class N, int D>
MDOPS_D void add_product(float (&sum)[D / 8][4], const uint32_t (&a)[N::kParts][4], const char* tile,
                         int apart, int row, float factor) {
#pragma unroll
  for (int pair = 0; pair < D / 16; ++pair) {
    uint32_t b[N::kParts][4];
    load_parts_transposed<N>(b, tile, apart, place_by_rows<D>(row, 16 * pair));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (N::kBfloat) {
        multiply_parts<N>(sum[2 * pair + half], a, b, half);  // nothing has a scale
      } else {
        float c[4] = {};
        multiply_parts<N>(c, a, b, half);
#pragma unroll
        for (int k = 0; k < 4; ++k) sum[2 * pair + half][k] += factor * c[k];
      }
    }
  }
}

// exp of moderate numbers: as accurate as the products.
MDOPS_D float exponential(float x) {
  return power_of_two(1.4426950408889634f * x);
}

MDOPS_D void put_two_numbers(float* to, float a, float b) {
  *reinterpret_cast<float2*>(to) = make_float2(a, b);
}
MDOPS_D void put_two_numbers(__nv_bfloat16* to, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}
MDOPS_D void put_two_numbers(__half* to, float a, float b) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}

// Writes numbers 2 half and the next of each unit of a product, times a factor: a row's columns 8 n + 2 (l %
// 4) and the next of lane l, from `column` on.
template <class T, int Units>
MDOPS_D void put_row_of_units(T* row, int column, int width, bool wide, const float (&x)[Units][4], int half,
                              float factor) {
  const int first = column + 2 * (lane_index() % 4);
  if (wide) {
#pragma unroll
    for (int n = 0; n < Units; ++n)
      if (first + 8 * n < width)
        put_two_numbers(row + first + 8 * n, factor * x[n][2 * half], factor * x[n][2 * half + 1]);
  } else {
    unrolled<Units, 2>([&](int n, int k) {
      if (first + 8 * n + k < width) put(row + first + 8 * n + k, factor * x[n][2 * half + k]);
    });
  }
}

// x += the row's numbers, as `put_row_of_units` writes them.
template <int Units>
MDOPS_D void add_row_of_units(const float* row, int column, int width, bool wide, float (&x)[Units][4],
                              int half) {
  const int first = column + 2 * (lane_index() % 4);
  if (wide) {
#pragma unroll
    for (int n = 0; n < Units; ++n)
      if (first + 8 * n < width) {
        const float2 two = two_numbers(row + first + 8 * n);
        x[n][2 * half] += two.x, x[n][2 * half + 1] += two.y;
      }
  } else {
    unrolled<Units, 2>([&](int n, int k) {
      if (first + 8 * n + k < width) x[n][2 * half + k] += row[first + 8 * n + k];
    });
  }
}

}  // namespace mdops::gpu_attention
