// The part of a layer of attention that goes row by row, by tensor cores, to the accuracy of float32:
// products with the weights, and what stands before and after them. attention/gpu_forward.h and
// gpu_backward.h are between.
//
//   forward    project_kernel   q, k, v = g W + b, of length 1
//              finish_kernel    norm(g + o W_o + b_o)
//   backward   begin_kernel     dh of LayerNorm's gradient; do = dh W_o^T; delta = do.o
//              collect_kernel   dg = dh + sum over q, k and v of (dx - x x.dx) / |x| W^T
//
// Where q, k and v stand behind g, attention reads them and writes their gradients there, and dh is where dg
// is to be. If they still have to be brought to length 1 or multiplied with factors, take_kernel is in the
// place of the first and give_kernel of the last.
//
// A block stays with its multiprocessor. It brings the weights to shared memory as parts of float16 once, as
// a lane takes them (16 bytes a lane for each 16 of the depth and 8 columns), and its warps take 16 rows
// after 16 rows. A lane has, of rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next of each unit of 8:
// the sums of a product, and, two units together, the operand of the next. So rows never pass through shared
// memory.
#pragma once

#include "attention/gpu_tiles.h"
#include "attention_layer/attention_layer.h"

namespace mdops {
namespace gpu_attention_layer {

using gpu_attention::kGroup;
using Parts = gpu_attention::Numbers<float, 2>;

constexpr int kRowWarps = 8, kRowThreads = kRowWarps * kWarp;
constexpr int kLightBlocks = 4;  // a multiprocessor, of kernels without factors
constexpr int kWidestRow = 128;  // the most features, and the most columns of q, k and v

struct RowArgs {
  int rows, features, width;
  int columns, parts_begin;  // of g; where q begins in it, without weights for it
  int begin, end;            // of q, k and v, the weights that one launch takes
  // Rows from the last of the atoms' offsets on are of no atom, and left as they are; with `bad` of
  // attention's kernels, none is.
  const int32_t *last, *bad;
  bool normalize, in_place;
  float eps;
  const float *project, *project_bias, *factors, *out, *out_bias, *norm, *norm_bias, *g;
  // Kept from forward to backward; the three and o are (rows, width), the normalised h (rows, features), the
  // others (rows,).
  float *part[3], *shrink[3], *o, *normed, *deviation;
  float* unit_q;  // (rows, width), with factors: q without them
};

// A lane's numbers of 16 rows, as the top of this file has them.
template <int Units>
using Rows = float[Units][4];

__device__ __forceinline__ int row_of(int number) {
  return lane_index() / 4 + number / 2 * 8;
}
__device__ __forceinline__ int column_of(int unit, int number) {
  return 8 * unit + 2 * (lane_index() % 4) + number % 2;
}

// Rows lie so that two numbers may be read at once (Even), and of so many units of 8 columns the first Sure
// have no column beyond the last: then nothing is asked about them, and no branch is between reads.
template <bool Even_, int Units_, int Sure_>
struct RowShape {
  static constexpr bool kEven = Even_;
  static constexpr int kUnits = Units_, kSure = Sure_;
  static __device__ __forceinline__ bool has(int unit, int number, int columns) {
    return unit < kSure || column_of(unit, number) < columns;
  }
};

// `count` of 16 rows, `stride` numbers apart, zeros beyond the columns. In the place of rows that are not
// there stands the last one.
template <class Shape>
__device__ __forceinline__ void load_rows(Rows<Shape::kUnits>& x, const float* from, int columns, int count,
                                          int64_t stride) {
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
__device__ __forceinline__ void store_rows(const Rows<Shape::kUnits>& x, float* to, int columns, int count,
                                           int64_t stride) {
#pragma unroll
  for (int k = 0; k < 4; k += 2) {
    float* const row = to + row_of(k) * stride;
    const bool there = row_of(k) < count;
#pragma unroll
    for (int unit = 0; unit < Shape::kUnits; ++unit) {
      float* const at = row + column_of(unit, k);
      if constexpr (Shape::kEven) {
        if (there && Shape::has(unit, k, columns))
          *reinterpret_cast<float2*>(at) = make_float2(x[unit][k], x[unit][k + 1]);
      } else {
        if (there && Shape::has(unit, k, columns)) at[0] = x[unit][k];
        if (there && Shape::has(unit, k + 1, columns)) at[1] = x[unit][k + 1];
      }
    }
  }
}

// One number of each of a lane's two rows: the sum of number(unit, k), 0 beyond the columns.
template <int Units, class F>
__device__ __forceinline__ void sum_rows(float (&sum)[2], const F& number) {
  sum[0] = sum[1] = 0;
#pragma unroll
  for (int unit = 0; unit < Units; ++unit)
#pragma unroll
    for (int k = 0; k < 4; ++k) sum[k / 2] += number(unit, k);
  sum[0] = gpu_attention::quad_sum(sum[0]), sum[1] = gpu_attention::quad_sum(sum[1]);
}

__device__ __forceinline__ void load_numbers(float (&x)[2], const float* from, int count) {
#pragma unroll
  for (int h = 0; h < 2; ++h) x[h] = from[min(row_of(2 * h), count - 1)];
}
__device__ __forceinline__ void store_numbers(const float (&x)[2], float* to, int count) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (lane_index() % 4 == 0 && row_of(2 * h) < count) to[row_of(2 * h)] = x[h];
}

// Asks for 16 rows from `first` on, of so many, that this warp will read next, `stride` numbers apart. What a
// multiprocessor's warps ask for has to stay in the L2 cache until they read it, beside what they read and
// write meanwhile: of long rows of many tensors it does not.
__device__ __forceinline__ void ask_for_rows(const float* from, int64_t first, int rows, int columns,
                                             int64_t stride) {
  constexpr int kLine = 128 / sizeof(float);
  if (first >= rows) return;
  int count = min(kGroup, static_cast<int>(rows - first));
  if (stride == columns) columns *= count, count = 1;
  const int lines = (columns + kLine - 1) / kLine;
  for (int k = lane_index(); k < lines * count; k += kWarp)
    gpu_attention::prefetch_line(from + (first + k / lines) * stride + k % lines * kLine);
}

// A factor of products in shared memory: 16 Steps deep, 8 Units columns.
template <int Steps, int Units>
struct Factor {
  static constexpr int kBytes = Steps * Units * kWarp * 16;
};

// After the factors in shared memory. Numbers of columns are zero beyond the last one.
struct BlockNumbers {
  uint32_t largest;
  float inverse[3];
  float of_columns[4][kWidestRow];
};

__device__ __forceinline__ BlockNumbers& block_numbers(int factors) {
  return *reinterpret_cast<BlockNumbers*>(gpu_attention::block_memory() + factors);
}

// `which` of the block's numbers of columns, if there are any.
__device__ __forceinline__ void fill_columns(BlockNumbers& numbers, int which, const float* from,
                                             int columns) {
  static_assert(kWidestRow <= kRowThreads);
  const int k = threadIdx.x;
  if (from && k < kWidestRow) numbers.of_columns[which][k] = k < columns ? from[k] : 0.0f;
}

// f(x, number of its column) for all numbers of rows.
template <int Units, class F>
__device__ __forceinline__ void with_columns(Rows<Units>& x, const float (&of_columns)[kWidestRow],
                                             const F& f) {
#pragma unroll
  for (int unit = 0; unit < Units; ++unit) {
    const float2 two = *reinterpret_cast<const float2*>(of_columns + column_of(unit, 0));
#pragma unroll
    for (int k = 0; k < 4; ++k) f(x[unit][k], k % 2 ? two.y : two.x);
  }
}

// Fills one with number(k, n) of `depth` rows and `columns` columns, zeros beyond, by all threads of the
// block; returns by what products with it are to be multiplied. `largest` is shared.
template <int Steps, int Units, class F>
__device__ float fill_factor(char* factor, int depth, int columns, uint32_t* largest, const F& number) {
  __syncthreads();
  if (threadIdx.x == 0) *largest = 0;
  __syncthreads();
  uint32_t most = 0;
  for (int k = threadIdx.x; k < depth * columns; k += kRowThreads)
    most = gpu_attention::larger(most, number(k / columns, k % columns));
  most = gpu_attention::warp_largest(most);
  if (lane_index() == 0) atomicMax(largest, most);
  __syncthreads();
  const float scale = gpu_attention::scale_of_bits(*largest);
  for (int place = threadIdx.x; place < Steps * Units * kWarp; place += kRowThreads) {
    const int lane = place % kWarp, unit = place / kWarp % Units, step = place / kWarp / Units;
    const int n = 8 * unit + lane / 4, k = 16 * step + 2 * (lane % 4);
    float x[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = k + i / 2 * 8 + i % 2;
      x[i] = row < depth && n < columns ? scale * number(row, n) : 0.0f;
    }
    uint32_t first[2], second[2];
    gpu_attention::split_pair<Parts>(x[0], x[1], first);
    gpu_attention::split_pair<Parts>(x[2], x[3], second);
    reinterpret_cast<uint4*>(factor)[place] = make_uint4(first[0], second[0], first[1], second[1]);
  }
  __syncthreads();
  return inverse_power(scale);
}

// sum += inverse x B, of x times a power of two, `scale`, in parts. What tensor cores add they round towards
// zero, so the sums over the depth are made outside of them.
template <int Steps, int Units>
__device__ __forceinline__ void add_product(Rows<Units>& sum, const Rows<2 * Steps>& x, float scale,
                                            const char* factor, float inverse) {
  const float by = inverse * inverse_power(scale);
#pragma unroll
  for (int step = 0; step < Steps; ++step) {
    uint32_t a[2][4];
    gpu_attention::as_operand<Parts>(x[2 * step], x[2 * step + 1], scale, a);
#pragma unroll
    for (int unit = 0; unit < Units; ++unit) {
      const uint4 b = reinterpret_cast<const uint4*>(factor)[(step * Units + unit) * kWarp + lane_index()];
      float c[4] = {};
      gpu_attention::multiply_16<false>(c, a[1], b.x, b.y);
      gpu_attention::multiply_16<false>(c, a[0], b.z, b.w);
      gpu_attention::multiply_16<false>(c, a[0], b.x, b.y);
#pragma unroll
      for (int k = 0; k < 4; ++k) sum[unit][k] += by * c[k];
    }
  }
}

template <int Steps, int Units>
__device__ __forceinline__ void add_product(Rows<Units>& sum, const Rows<2 * Steps>& x, const char* factor,
                                            float inverse) {
  add_product<Steps, Units>(sum, x, gpu_attention::scale_of_units<Parts>(x), factor, inverse);
}

// f(first row, how many of 16 are there, the first row of the next group) for the groups of rows of this
// warp; there may be no such row.
template <class F>
__device__ __forceinline__ void each_group(int rows, const F& f) {
  const int groups = (rows + kGroup - 1) / kGroup, apart = gridDim.x * kRowWarps;
  for (int group = blockIdx.x * kRowWarps + threadIdx.x / kWarp; group < groups; group += apart)
    f(static_cast<int64_t>(group) * kGroup, min(kGroup, rows - group * kGroup),
      static_cast<int64_t>(group + apart) * kGroup);
}

// How many rows are of an atom. All threads of a block must call it.
__device__ __forceinline__ int rows_of_atoms(const RowArgs& p) {
  return gpu_attention::is_bad(p.bad) ? p.rows : min(max(*p.last, 0), p.rows);
}
// Zeros in the columns [begin, end) of `count` rows from a pointer on.
__device__ __forceinline__ void clear_columns(float* to, int begin, int end, int64_t stride, int count) {
  const int columns = end - begin;
  for (int k = lane_index(); k < columns * count; k += kWarp)
    to[k / columns * stride + begin + k % columns] = 0;
}

// x to length 1, if it is to be; by what it was multiplied.
template <int Units>
__device__ __forceinline__ void shorten(Rows<Units>& x, const RowArgs& p, float (&shrink)[2]) {
  shrink[0] = shrink[1] = 1;
  if (!p.normalize) return;
  float squares[2];
  sum_rows<Units>(squares, [&](int unit, int k) { return x[unit][k] * x[unit][k]; });
#pragma unroll
  for (int h = 0; h < 2; ++h) shrink[h] = UnitRow<float>(squares[h]).inverse;
#pragma unroll
  for (int unit = 0; unit < Units; ++unit)
#pragma unroll
    for (int k = 0; k < 4; ++k) x[unit][k] *= shrink[k / 2];
}

// dx of x = h / |h| to that of h.
template <int Units>
__device__ __forceinline__ void lengthen(Rows<Units>& dx, const Rows<Units>& x, const float (&shrink)[2]) {
  float along[2];
  sum_rows<Units>(along, [&](int unit, int k) { return dx[unit][k] * x[unit][k]; });
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (shrink[h] >= static_cast<float>(1 / kShortest)) along[h] = 0;
#pragma unroll
  for (int unit = 0; unit < Units; ++unit)
#pragma unroll
    for (int k = 0; k < 4; ++k) dx[unit][k] = (dx[unit][k] - along[k / 2] * x[unit][k]) * shrink[k / 2];
}

// The factors are the last of a block's numbers of columns.
constexpr int kFactors = 3;

// q, k or v of 16 rows as attention takes them and as the backward pass does.
template <class Shape>
__device__ __forceinline__ void keep_part(Rows<Shape::kUnits>& x, const RowArgs& p, int part,
                                          const BlockNumbers& numbers, int64_t first, int count) {
  float shrink[2];
  shorten<Shape::kUnits>(x, p, shrink);
  if (part == 0 && p.factors) {
    store_rows<Shape>(x, p.unit_q + first * p.width, p.width, count, p.width);
    with_columns<Shape::kUnits>(x, numbers.of_columns[kFactors], [](float& y, float by) { y *= by; });
  }
  store_rows<Shape>(x, p.part[part] + first * p.width, p.width, count, p.width);
  store_numbers(shrink, p.shrink[part] + first, count);
}

struct PartGradients {
  const float* of[3];  // of q, k and v, (rows, width)
};

// The gradients by q, k or v, and what of the forward pass brings them to those of what these were made of.
template <class Shape>
struct PartRows {
  Rows<Shape::kUnits> dx, x;
  float shrink[2];

  __device__ __forceinline__ void load(const RowArgs& p, const PartGradients& d, int part, int64_t first,
                                       int count) {
    load_rows<Shape>(dx, d.of[part] + first * p.width, p.width, count, p.width);
    if (!p.normalize) return;
    load_rows<Shape>(x, kept(p, part) + first * p.width, p.width, count, p.width);
    load_numbers(shrink, p.shrink[part] + first, count);
  }
  __device__ __forceinline__ void finish(const RowArgs& p, int part, const BlockNumbers& numbers) {
    if (part == 0 && p.factors)
      with_columns<Shape::kUnits>(dx, numbers.of_columns[kFactors], [](float& y, float by) { y *= by; });
    if (p.normalize) lengthen<Shape::kUnits>(dx, x, shrink);
  }

  static __device__ __forceinline__ const float* kept(const RowArgs& p, int part) {
    return part == 0 && p.factors ? p.unit_q : p.part[part];
  }
};

// Kernels take rows of F units of 16 features and W of the width (`with_widths` of gpu_loops.cu), those of
// even rows no fewer features than the next smaller F leaves over. A W below 8 may be far from full.
constexpr int kFew = 2, kSome = 4, kMany = 7, kMost = 8;

template <bool Even, int F>
using FeatureRows = RowShape<Even, 2 * F,
                             Even ? 2 * (F == kMost   ? kMany
                                         : F == kMany ? kSome
                                                      : 0)
                                  : 0>;
template <bool Even, int W>
using PartShape = RowShape<Even, 2 * W, Even && W == kMost ? 2 * kSome : 0>;

template <bool Even, int F, int W>
__global__ void __launch_bounds__(kRowThreads, 1) project_kernel(RowArgs p) {
  using Features = FeatureRows<Even, F>;
  using Part = PartShape<Even, W>;
  char* const memory = gpu_attention::block_memory();
  constexpr int kBytes = Factor<F, 2 * W>::kBytes;
  BlockNumbers& numbers = block_numbers((p.end - p.begin) * kBytes);
  fill_columns(numbers, kFactors, p.factors, p.width);
  for (int part = p.begin; part < p.end; ++part) {
    fill_columns(numbers, part, p.project_bias + part * p.width, p.width);
    const float found =
        fill_factor<F, 2 * W>(memory + (part - p.begin) * kBytes, p.features, p.width, &numbers.largest,
                              [&](int k, int n) { return p.project[(k * 3 + part) * p.width + n]; });
    if (threadIdx.x == 0) numbers.inverse[part] = found;
  }
  __syncthreads();
  const int rows = min(max(*p.last, 0), p.rows);
  each_group(rows, [&](int64_t first, int count, int64_t next) {
    ask_for_rows(p.g, next, rows, p.features, p.features);
    Rows<2 * F> g;
    load_rows<Features>(g, p.g + first * p.features, p.features, count, p.features);
    const float scale = gpu_attention::scale_of_units<Parts>(g);
#pragma unroll 1
    for (int part = p.begin; part < p.end; ++part) {
      Rows<2 * W> x{};
      add_product<F, 2 * W>(x, g, scale, memory + (part - p.begin) * kBytes, numbers.inverse[part]);
      with_columns<2 * W>(x, numbers.of_columns[part], [](float& y, float bias) { y += bias; });
      keep_part<Part>(x, p, part, numbers, first, count);
    }
  });
}

template <bool Even, int W>
__global__ void __launch_bounds__(kRowThreads, kLightBlocks) take_kernel(RowArgs p) {
  using Part = PartShape<Even, W>;
  BlockNumbers& numbers = block_numbers(0);
  fill_columns(numbers, kFactors, p.factors, p.width);
  __syncthreads();
  each_group(min(max(*p.last, 0), p.rows), [&](int64_t first, int count, int64_t) {
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
      Rows<2 * W> x;
      const float* const from = p.g + first * p.columns + p.parts_begin + part * p.width;
      load_rows<Part>(x, from, p.width, count, p.columns);
      keep_part<Part>(x, p, part, numbers, first, count);
    }
  });
}

// What columns a block has numbers of besides `kFactors`.
enum OfColumns { kOutBias, kNorm, kNormBias };

// o to `result` (rows, features).
template <bool Even, int F, int W>
__global__ void __launch_bounds__(kRowThreads, 1) finish_kernel(RowArgs p, float* result) {
  using Features = FeatureRows<Even, F>;
  using Part = PartShape<Even, W>;
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(Factor<W, 2 * F>::kBytes);
  fill_columns(numbers, kOutBias, p.out_bias, p.features);
  fill_columns(numbers, kNorm, p.norm, p.features), fill_columns(numbers, kNormBias, p.norm_bias, p.features);
  const float inverse = fill_factor<W, 2 * F>(memory, p.width, p.features, &numbers.largest,
                                              [&](int k, int n) { return p.out[k * p.features + n]; });
  const int rows = rows_of_atoms(p);
  each_group(rows, [&](int64_t first, int count, int64_t next) {
    ask_for_rows(p.o, next, rows, p.width, p.width), ask_for_rows(p.g, next, rows, p.features, p.columns);
    Rows<2 * F> x{}, g;
    Rows<2 * W> in;
    load_rows<Part>(in, p.o + first * p.width, p.width, count, p.width);
    load_rows<Features>(g, p.g + first * p.columns, p.features, count, p.columns);
    add_product<W, 2 * F>(x, in, memory, inverse);
    with_columns<2 * F>(g, numbers.of_columns[kOutBias], [](float& y, float bias) { y += bias; });
#pragma unroll
    for (int unit = 0; unit < 2 * F; ++unit)
#pragma unroll
      for (int k = 0; k < 4; ++k) x[unit][k] += g[unit][k];
    float mean[2], deviation[2];
    sum_rows<2 * F>(mean, [&](int unit, int k) { return x[unit][k]; });
    mean[0] /= p.features, mean[1] /= p.features;
    sum_rows<2 * F>(deviation, [&](int unit, int k) {
      const float from = x[unit][k] - mean[k / 2];
      return Features::has(unit, k, p.features) ? from * from : 0.0f;
    });
#pragma unroll
    for (int h = 0; h < 2; ++h) deviation[h] = 1 / sqrtf(deviation[h] / p.features + p.eps);
    store_numbers(deviation, p.deviation + first, count);
#pragma unroll
    for (int unit = 0; unit < 2 * F; ++unit)
#pragma unroll
      for (int k = 0; k < 4; ++k) x[unit][k] = (x[unit][k] - mean[k / 2]) * deviation[k / 2];
    store_rows<Features>(x, p.normed + first * p.features, p.features, count, p.features);
    with_columns<2 * F>(x, numbers.of_columns[kNorm], [](float& y, float by) { y *= by; });
    with_columns<2 * F>(x, numbers.of_columns[kNormBias], [](float& y, float bias) { y += bias; });
    store_rows<Features>(x, result + first * p.features, p.features, count, p.features);
  });
}

// `grad` (rows, features) to `dh` (rows, features), which are `columns` apart in memory, `grad_o` (rows,
// width) and `delta` (rows,).
template <bool Even, int F, int W>
__global__ void __launch_bounds__(kRowThreads, 1)
    begin_kernel(RowArgs p, const float* grad, float* dh, int columns, float* grad_o, float* delta) {
  using Features = FeatureRows<Even, F>;
  using Part = PartShape<Even, W>;
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(Factor<F, 2 * W>::kBytes);
  fill_columns(numbers, kNorm, p.norm, p.features);
  const float inverse = fill_factor<F, 2 * W>(memory, p.features, p.width, &numbers.largest,
                                              [&](int k, int n) { return p.out[n * p.features + k]; });
  const int rows = min(max(*p.last, 0), p.rows);
  // Where attention writes its gradients in place, the columns before them are left.
  const int stored = p.in_place ? min(p.parts_begin, 16 * F) : p.features;
  each_group(rows, [&](int64_t first, int count, int64_t) {
    if (p.in_place) clear_columns(dh + first * columns, stored, p.parts_begin, columns, count);
    Rows<2 * F> x, h;
    float deviation[2], along[2], whole[2], sum[2];
    load_rows<Features>(x, grad + first * p.features, p.features, count, p.features);
    load_rows<Features>(h, p.normed + first * p.features, p.features, count, p.features);
    load_numbers(deviation, p.deviation + first, count);
    with_columns<2 * F>(x, numbers.of_columns[kNorm], [](float& y, float by) { y *= by; });
    sum_rows<2 * F>(whole, [&](int unit, int k) { return x[unit][k]; });
    sum_rows<2 * F>(along, [&](int unit, int k) { return x[unit][k] * h[unit][k]; });
#pragma unroll
    for (int unit = 0; unit < 2 * F; ++unit)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int i = k / 2;
        const float rest = x[unit][k] - whole[i] / p.features - h[unit][k] * (along[i] / p.features);
        x[unit][k] = Features::has(unit, k, p.features) ? rest * deviation[i] : 0.0f;
      }
    store_rows<Features>(x, dh + first * columns, stored, count, columns);
    Rows<2 * W> grad_rows{}, o;
    load_rows<Part>(o, p.o + first * p.width, p.width, count, p.width);
    add_product<F, 2 * W>(grad_rows, x, memory, inverse);
    store_rows<Part>(grad_rows, grad_o + first * p.width, p.width, count, p.width);
    sum_rows<2 * W>(sum, [&](int unit, int k) { return grad_rows[unit][k] * o[unit][k]; });
    store_numbers(sum, delta + first, count);
  });
}

// `from` (rows, features) and what the parts of this launch add, to `result`.
template <bool Even, int F, int W>
__global__ void __launch_bounds__(kRowThreads, 1)
    collect_kernel(RowArgs p, PartGradients d, const float* from, float* result) {
  using Features = FeatureRows<Even, F>;
  using Part = PartShape<Even, W>;
  char* const memory = gpu_attention::block_memory();
  constexpr int kBytes = Factor<W, 2 * F>::kBytes;
  BlockNumbers& numbers = block_numbers((p.end - p.begin) * kBytes);
  fill_columns(numbers, kFactors, p.factors, p.width);
  for (int part = p.begin; part < p.end; ++part) {
    const float found =
        fill_factor<W, 2 * F>(memory + (part - p.begin) * kBytes, p.width, p.features, &numbers.largest,
                              [&](int k, int n) { return p.project[(n * 3 + part) * p.width + k]; });
    if (threadIdx.x == 0) numbers.inverse[part] = found;
  }
  __syncthreads();
  const int rows = rows_of_atoms(p);
  // Of the part that comes next.
  const auto ask = [&](int part, int64_t at) {
    ask_for_rows(d.of[part], at, rows, p.width, p.width);
    if (p.normalize) ask_for_rows(PartRows<Part>::kept(p, part), at, rows, p.width, p.width);
  };
  each_group(rows, [&](int64_t first, int count, int64_t next) {
    Rows<2 * F> sum;
    load_rows<Features>(sum, from + first * p.features, p.features, count, p.features);
#pragma unroll 1
    for (int part = p.begin; part < p.end; ++part) {
      PartRows<Part> own;
      own.load(p, d, part, first, count);
      if (part + 1 < p.end)
        ask(part + 1, first);
      else
        ask(p.begin, next);
      own.finish(p, part, numbers);
      add_product<W, 2 * F>(sum, own.dx, memory + (part - p.begin) * kBytes, numbers.inverse[part]);
    }
    store_rows<Features>(sum, result + first * p.features, p.features, count, p.features);
  });
}

// The columns of the coordinates in `result` (rows, columns), whose others are there.
template <bool Even, int W>
__global__ void __launch_bounds__(kRowThreads, kLightBlocks)
    give_kernel(RowArgs p, PartGradients d, float* result) {
  using Part = PartShape<Even, W>;
  BlockNumbers& numbers = block_numbers(0);
  fill_columns(numbers, kFactors, p.factors, p.width);
  const int rows = rows_of_atoms(p);
  each_group(rows, [&](int64_t first, int count, int64_t) {
    float* const to = result + first * p.columns;
    clear_columns(to, p.features, p.parts_begin, p.columns, count);
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
      PartRows<Part> own;
      own.load(p, d, part, first, count);
      own.finish(p, part, numbers);
      store_rows<Part>(own.dx, to + p.parts_begin + part * p.width, p.width, count, p.columns);
    }
  });
}

}  // namespace gpu_attention_layer
}  // namespace mdops
