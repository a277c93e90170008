// Rows in registers, and their products by tensor cores, to the accuracy of float32: parts of kernels that go
// row by row.
//
// Blocks are persistent. A block copies the weights to shared memory once as parts of float16, in the lanes'
// order (16 bytes a lane for each 16 of the depth and 8 columns), and its warps take 16 rows at a time. A
// lane has, of rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next of each unit of 8:
// the sums of a product, and, two units together, the operand of the next. So rows never pass through shared
// memory.
#pragma once

#include "attention/gpu_tiles.h"
#include "common/gpu_unroll.h"
#include "rowwise/normalize.h"

namespace mdops::gpu_attention_layer {

using gpu_attention::kGroup;
using Parts = gpu_attention::Numbers<float, 2>;

constexpr int kRowWarps = 8, kRowThreads = kRowWarps * kWarp;
constexpr int kWidestRow = 128;  // the most features, and the most columns of q, k and v

// A lane's numbers of 16 rows, as described above.
template <int Units>
using Rows = float[Units][4];

MDOPS_D int row_of(int number) {
  return lane_index() / 4 + number / 2 * 8;
}
MDOPS_D int column_of(int unit, int number) {
  return 8 * unit + 2 * (lane_index() % 4) + number % 2;
}

// Rows are aligned so that two numbers can be read at once (Even), and the first Sure of the units of 8
// columns have no column past the last: then reads need no checks and no branches.
template <bool Even_, int Units_, int Sure_>
struct RowShape {
  static constexpr bool kEven = Even_;
  static constexpr int kUnits = Units_, kSure = Sure_;
  static MDOPS_D bool has(int unit, int number, int columns) {
    return unit < kSure || column_of(unit, number) < columns;
  }
};

// Kernels take rows of F units of 16 features and W of the width (`with_widths` of attention_layer's
// gpu_loops.cu); even rows have at least the features of the next smaller F. A W below 8 may be mostly empty.
constexpr int kFew = 2, kSome = 4, kMany = 7, kMost = 8;

template <bool Even, int F>
using FeatureRows = RowShape<Even, 2 * F,
                             Even ? 2 * (F == kMost   ? kMany
                                         : F == kMany ? kSome
                                                      : 0)
                                  : 0>;

// Loads `count` of 16 rows, `stride` numbers apart, zeros after the columns. Missing rows are copies of the
// last one.
template <class Shape>
MDOPS_D void load_rows(Rows<Shape::kUnits>& x, const float* from, int columns, int count, int64_t stride) {
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    const float* const row = from + min(row_of(k), count - 1) * stride;
#pragma unroll
    for (int unit = 0; unit < Shape::kUnits; ++unit) {
      const float* const at = row + column_of(unit, k);
      float2 two = make_float2(0, 0);
      if constexpr (Shape::kEven) {
        if (Shape::has(unit, k, columns)) two = *reinterpret_cast<const float2*>(at);
      } else {
        if (Shape::has(unit, k, columns)) two.x = at[0];
        if (Shape::has(unit, k + 1, columns)) two.y = at[1];
      }
      x[unit][k] = two.x, x[unit][k + 1] = two.y;
    }
  }
}

template <class Shape>
MDOPS_D void store_rows(const Rows<Shape::kUnits>& x, float* to, int columns, int count, int64_t stride) {
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    float* const row = to + row_of(k) * stride;
    const bool in_bounds = row_of(k) < count;
#pragma unroll
    for (int unit = 0; unit < Shape::kUnits; ++unit) {
      float* const at = row + column_of(unit, k);
      if constexpr (Shape::kEven) {
        if (in_bounds && Shape::has(unit, k, columns))
          *reinterpret_cast<float2*>(at) = make_float2(x[unit][k], x[unit][k + 1]);
      } else {
        if (in_bounds && Shape::has(unit, k, columns)) at[0] = x[unit][k];
        if (in_bounds && Shape::has(unit, k + 1, columns)) at[1] = x[unit][k + 1];
      }
    }
  }
}

// For each of a lane's two rows, the sum of number(unit, k), 0 after the columns.
template <int Units, class F>
MDOPS_D void sum_rows(float (&sum)[2], const F& number) {
  sum[0] = sum[1] = 0;
  unrolled<Units, 4>([&](int unit, int k) { sum[k / 2] += number(unit, k); });
  sum[0] = quad_sum(sum[0]), sum[1] = quad_sum(sum[1]);
}

MDOPS_D void load_numbers(float (&x)[2], const float* from, int count) {
#pragma unroll
  for (int h = 0; h < 2; ++h) x[h] = from[min(row_of(2 * h), count - 1)];
}
MDOPS_D void store_numbers(const float (&x)[2], float* to, int count) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (lane_index() % 4 == 0 && row_of(2 * h) < count) to[row_of(2 * h)] = x[h];
}

// Prefetches the 16 rows from `first` on, of `rows`, that this warp will read next, `stride` numbers apart.
// The prefetches of a multiprocessor's warps must stay in the L2 cache until they are read, despite other
// reads and writes: long rows of many tensors do not.
MDOPS_D void ask_for_rows(const float* from, int64_t first, int rows, int columns, int64_t stride) {
  constexpr int kLine = 128 / sizeof(float);
  if (first >= rows) return;
  const int count = min(kGroup, static_cast<int>(rows - first));
  from += first * stride;
  if (stride == columns) {  // one long row
    for (int k = kLine * lane_index(); k < columns * count; k += kLine * kWarp)
      gpu_attention::prefetch_line(from + k);
    return;
  }
  const int lines = (columns + kLine - 1) / kLine;
  for (int k = lane_index(); k < lines * count; k += kWarp)
    gpu_attention::prefetch_line(from + k / lines * stride + k % lines * kLine);
}

// The right factor of products in shared memory: 16 Steps deep, 8 Units columns.
template <int Steps, int Units>
struct Factor {
  static constexpr int kBytes = Steps * Units * kWarp * 16;
};

// After the factors in shared memory: the scales of products with them, and per-column numbers, zero after
// the last.
struct BlockNumbers {
  uint32_t largest;
  float inverse[5];
  float of_columns[5][kWidestRow];
};

MDOPS_D BlockNumbers& block_numbers(int factors) {
  return *reinterpret_cast<BlockNumbers*>(gpu_attention::block_memory() + factors);
}

// Fills per-column numbers of the block, if `from` has any.
MDOPS_D void fill_columns(BlockNumbers& numbers, int which, const float* from, int columns) {
  static_assert(kWidestRow <= kRowThreads);
  const int k = threadIdx.x;
  if (from && k < kWidestRow) numbers.of_columns[which][k] = k < columns ? from[k] : 0.0f;
}

// x = f(x, number of its column) for all numbers of rows.
template <int Units, class F>
MDOPS_D void with_columns(Rows<Units>& x, const float (&of_columns)[kWidestRow], const F& f) {
#pragma unroll
  for (int unit = 0; unit < Units; ++unit) {
    const float2 two = *reinterpret_cast<const float2*>(of_columns + column_of(unit, 0));
#pragma unroll
    for (int k = 0; k < 4; ++k) f(x[unit][k], k % 2 ? two.y : two.x);
  }
}

// All threads of the block fill a factor with number(k, n) of `depth` rows and `columns` columns, zeros after
// them. Returns the scale of products with it. `largest` is shared. A lane's 16 bytes are both parts of B's
// operand of a unit; with `Across`, of two units one part of A's operand of the transposed product, and the
// next 16 bytes the other.
//
// The scale is known when all numbers have been read. A thread starts many loads before it waits for one, and
// keeps them if its registers hold all its numbers: else it reads them twice.
template <int Steps, int Units, bool Across = false, int Threads = kRowThreads, class F>
__device__ float fill_factor(char* factor, int depth, int columns, uint32_t* largest, const F& number) {
  constexpr int kPlaces = Steps * Units * kWarp, kMostAtOnce = 16;
  constexpr int kTurns = (kPlaces + Threads * kMostAtOnce - 1) / (Threads * kMostAtOnce);
  constexpr int kAtOnce = (kPlaces + Threads * kTurns - 1) / (Threads * kTurns);
  float x[kAtOnce][4];
  const auto each_place = [&](int turn, const auto& f) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int place = threadIdx.x + (turn * kAtOnce + i) * Threads;
      f(x[i], place, place / kWarp % Units, place / kWarp / Units);
    }
  };
  const auto read = [&](int turn) {
    each_place(turn, [&](float (&four)[4], int place, int unit, int step) {
      const int n = 8 * unit + lane_index() / 4, k = 16 * step + 2 * (lane_index() % 4);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = k + i / 2 * 8 + i % 2;
        four[i] = place < kPlaces && row < depth && n < columns ? number(row, n) : 0.0f;
      }
    });
  };
  __syncthreads();
  if (threadIdx.x == 0) *largest = 0;
  __syncthreads();
  uint32_t most = 0;
  for (int turn = kTurns - 1; turn >= 0; --turn) {
    read(turn);
    each_place(turn, [&](float (&four)[4], int, int, int) {
#pragma unroll
      for (int i = 0; i < 4; ++i) most = gpu_attention::larger(most, four[i]);
    });
  }
  most = warp_largest(most);
  if (lane_index() == 0) atomicMax(largest, most);
  __syncthreads();
  const float scale = gpu_attention::scale_of_bits(*largest);
  for (int turn = 0; turn < kTurns; ++turn) {
    if (turn > 0) read(turn);
    each_place(turn, [&](float (&four)[4], int place, int unit, int step) {
      if (place >= kPlaces) return;
      uint32_t first[2], second[2];
      gpu_attention::split_pair<Parts>(scale * four[0], scale * four[1], first);
      gpu_attention::split_pair<Parts>(scale * four[2], scale * four[3], second);
      if constexpr (Across) {
        uint32_t* const words = reinterpret_cast<uint32_t*>(factor) +
                                4 * ((step * Units + unit / 2 * 2) * kWarp + lane_index()) + unit % 2;
#pragma unroll
        for (int part = 0; part < 2; ++part)
          words[4 * kWarp * part] = first[part], words[4 * kWarp * part + 2] = second[part];
      } else {
        reinterpret_cast<uint4*>(factor)[place] = make_uint4(first[0], second[0], first[1], second[1]);
      }
    });
  }
  __syncthreads();
  return inverse_power(scale);
}

// sum += by A B of a step of the depth, A in parts. Tensor cores round sums towards zero, so sums over the
// depth are made outside of them.
template <int Units>
MDOPS_D void add_step(Rows<Units>& sum, const uint32_t (&a)[2][4], const char* factor, int step, float by) {
#pragma unroll
  for (int unit = 0; unit < Units; ++unit) {
    const uint4 b = reinterpret_cast<const uint4*>(factor)[(step * Units + unit) * kWarp + lane_index()];
    float c[4] = {};
    multiply_16<false>(c, a[1], b.x, b.y);
    multiply_16<false>(c, a[0], b.z, b.w);
    multiply_16<false>(c, a[0], b.x, b.y);
#pragma unroll
    for (int k = 0; k < 4; ++k) sum[unit][k] += by * c[k];
  }
}

// sum += inverse x B, with x times a power of two, `scale`, in parts.
template <int Steps, int Units>
MDOPS_D void add_product(Rows<Units>& sum, const Rows<2 * Steps>& x, float scale, const char* factor,
                         float inverse) {
  const float by = inverse * inverse_power(scale);
#pragma unroll
  for (int step = 0; step < Steps; ++step) {
    uint32_t a[2][4];
    gpu_attention::as_operand<Parts>(x[2 * step], x[2 * step + 1], scale, a);
    add_step<Units>(sum, a, factor, step, by);
  }
}

// Rows as operands of several products, and the scale of these.
template <int Steps>
struct Operands {
  uint32_t part[Steps][2][4];
  float inverse;

  Operands() = default;
  explicit MDOPS_D Operands(const Rows<2 * Steps>& x) {
    const float scale = gpu_attention::scale_of_units<Parts>(x);
    inverse = inverse_power(scale);
#pragma unroll
    for (int step = 0; step < Steps; ++step)
      gpu_attention::as_operand<Parts>(x[2 * step], x[2 * step + 1], scale, part[step]);
  }
};
template <int Steps, int Units>
MDOPS_D void add_product(Rows<Units>& sum, const Operands<Steps>& x, const char* factor, float inverse) {
#pragma unroll
  for (int step = 0; step < Steps; ++step)
    add_step<Units>(sum, x.part[step], factor, step, inverse * x.inverse);
}

template <int Steps, int Units>
MDOPS_D void add_product(Rows<Units>& sum, const Rows<2 * Steps>& x, const char* factor, float inverse) {
  add_product<Steps, Units>(sum, x, gpu_attention::scale_of_units<Parts>(x), factor, inverse);
}

// Calls f(first row, how many of its 16 exist, first row of the next group) for this warp's groups of rows;
// the next group may not exist.
MDOPS_D void each_group(int rows, const auto& f) {
  const int groups = (rows + kGroup - 1) / kGroup, warps = blockDim.x / kWarp, apart = gridDim.x * warps;
  for (int group = blockIdx.x * warps + threadIdx.x / kWarp; group < groups; group += apart)
    f(static_cast<int64_t>(group) * kGroup, min(kGroup, rows - group * kGroup),
      static_cast<int64_t>(group + apart) * kGroup);
}

// How many of `rows` belong to an atom: those before `last`, or all if the attention's arguments are wrong,
// according to `bad` of its kernels. All threads of a block must call it.
MDOPS_D int rows_of_atoms(const int32_t* last, const int32_t* bad, int rows) {
  return gpu_attention::is_bad(bad) ? rows : min(max(*last, 0), rows);
}

// Zeros columns [begin, end) of `count` rows from a pointer on.
MDOPS_D void clear_columns(float* to, int begin, int end, int64_t stride, int count) {
  const int columns = end - begin;
  for (int k = lane_index(); k < columns * count; k += kWarp)
    to[k / columns * stride + begin + k % columns] = 0;
}

// Scales x to length 1 if `normalize`; `shrink` is the factor.
template <int Units>
MDOPS_D void shorten(Rows<Units>& x, bool normalize, float (&shrink)[2]) {
  shrink[0] = shrink[1] = 1;
  if (!normalize) return;
  float squares[2];
  sum_rows<Units>(squares, [&](int unit, int k) { return x[unit][k] * x[unit][k]; });
#pragma unroll
  for (int h = 0; h < 2; ++h) shrink[h] = NormalizedRow<float>(squares[h]).inverse;
  unrolled<Units, 4>([&](int unit, int k) { x[unit][k] *= shrink[k / 2]; });
}

// Turns dx of x = h / |h| into that of h.
template <int Units>
MDOPS_D void lengthen(Rows<Units>& dx, const Rows<Units>& x, const float (&shrink)[2]) {
  float along[2];
  sum_rows<Units>(along, [&](int unit, int k) { return dx[unit][k] * x[unit][k]; });
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (shrink[h] >= static_cast<float>(1 / kShortest)) along[h] = 0;
  unrolled<Units, 4>(
      [&](int unit, int k) { dx[unit][k] = (dx[unit][k] - along[k / 2] * x[unit][k]) * shrink[k / 2]; });
}

}  // namespace mdops::gpu_attention_layer
