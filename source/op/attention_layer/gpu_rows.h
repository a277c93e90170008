// The part of a layer of attention that goes row by row, by tensor cores, to the accuracy of float32:
// products with the weights, and what stands before and after them. attention/gpu_forward.h and
// gpu_backward.h are between.
//
//   forward    project_kernel   q, k, v = g W + b, of length 1
//              finish_kernel    norm(g + o W_o + b_o)
//   backward   begin_kernel     dh of LayerNorm's gradient; do = dh W_o^T; delta = do.o
//              collect_kernel   dg = dh + sum over q, k and v of (dx - x x.dx) / |x| W^T
//
// Where q, k and v stand behind g, take_kernel is in the place of the first and give_kernel of the last; dh
// is then where dg is to be.
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
  // Rows from the last of the atoms' offsets on are of no atom, and answered with zeros; with `bad` of
  // attention's kernels, none is.
  const int32_t *last, *bad;
  bool normalize;
  float eps;
  const float *project, *project_bias, *factors, *out, *out_bias, *norm, *norm_bias, *g;
  // Kept from forward to backward; the three are (rows, width), o W_o (rows, features), the others (rows,).
  float *part[3], *shrink[3], *o_out, *deviation, *mean;
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

// Whether two numbers of a row may be read at once.
__device__ __forceinline__ bool in_pairs(const float* rows, int columns, int stride) {
  return (columns | stride) % 2 == 0 && reinterpret_cast<uintptr_t>(rows) % 8 == 0;
}

// `count` of 16 rows, `stride` numbers apart, zeros where nothing is.
template <int Units>
__device__ __forceinline__ void load_rows(Rows<Units>& x, const float* from, int columns, int count,
                                          int stride) {
  const bool pairs = in_pairs(from, columns, stride);
#pragma unroll
  for (int unit = 0; unit < Units; ++unit)
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      const int column = column_of(unit, k);
      const float* const at = from + static_cast<int64_t>(row_of(k)) * stride + column;
      const bool there = row_of(k) < count;
      x[unit][k] = x[unit][k + 1] = 0;
      if (pairs) {
        if (there && column < columns) {
          const float2 two = *reinterpret_cast<const float2*>(at);
          x[unit][k] = two.x, x[unit][k + 1] = two.y;
        }
      } else {
        if (there && column < columns) x[unit][k] = at[0];
        if (there && column + 1 < columns) x[unit][k + 1] = at[1];
      }
    }
}

template <int Units>
__device__ __forceinline__ void load_rows(Rows<Units>& x, const float* from, int columns, int count) {
  load_rows<Units>(x, from, columns, count, columns);
}

template <int Units>
__device__ __forceinline__ void store_rows(const Rows<Units>& x, float* to, int columns, int count,
                                           int stride) {
  const bool pairs = in_pairs(to, columns, stride);
#pragma unroll
  for (int unit = 0; unit < Units; ++unit)
#pragma unroll
    for (int k = 0; k < 4; k += 2) {
      const int column = column_of(unit, k);
      float* const at = to + static_cast<int64_t>(row_of(k)) * stride + column;
      if (row_of(k) >= count) continue;
      if (pairs) {
        if (column < columns) *reinterpret_cast<float2*>(at) = make_float2(x[unit][k], x[unit][k + 1]);
      } else {
        if (column < columns) at[0] = x[unit][k];
        if (column + 1 < columns) at[1] = x[unit][k + 1];
      }
    }
}

template <int Units>
__device__ __forceinline__ void store_rows(const Rows<Units>& x, float* to, int columns, int count) {
  store_rows<Units>(x, to, columns, count, columns);
}

// One number of each of a lane's two rows.
template <int Units, class F>
__device__ __forceinline__ void sum_rows(float (&sum)[2], int columns, const F& number) {
  sum[0] = sum[1] = 0;
#pragma unroll
  for (int unit = 0; unit < Units; ++unit)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (column_of(unit, k) < columns) sum[k / 2] += number(unit, k);
  sum[0] = gpu_attention::quad_sum(sum[0]), sum[1] = gpu_attention::quad_sum(sum[1]);
}

__device__ __forceinline__ void load_numbers(float (&x)[2], const float* from, int count) {
#pragma unroll
  for (int h = 0; h < 2; ++h) x[h] = row_of(2 * h) < count ? from[row_of(2 * h)] : 0.0f;
}
__device__ __forceinline__ void store_numbers(const float (&x)[2], float* to, int count) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (lane_index() % 4 == 0 && row_of(2 * h) < count) to[row_of(2 * h)] = x[h];
}

// A factor of products in shared memory: 16 Steps deep, 8 Units columns.
template <int Steps, int Units>
struct Factor {
  static constexpr int kBytes = Steps * Units * kWarp * 16;
};

// After the factors in shared memory.
struct BlockNumbers {
  uint32_t largest;
  float inverse[3];
};

__device__ __forceinline__ BlockNumbers& block_numbers(int factors) {
  return *reinterpret_cast<BlockNumbers*>(gpu_attention::block_memory() + factors);
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

// sum += inverse x B, of x times a power of two in parts. What tensor cores add they round towards zero, so
// the sums over the depth are made outside of them.
template <int Steps, int Units>
__device__ __forceinline__ void add_product(Rows<Units>& sum, const Rows<2 * Steps>& x, const char* factor,
                                            float inverse) {
  const float scale = gpu_attention::scale_of_units<Parts>(x);
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

// f(first row, how many of 16 are there) for the groups of rows of this warp.
template <class F>
__device__ __forceinline__ void each_group(int rows, const F& f) {
  const int groups = (rows + kGroup - 1) / kGroup;
  for (int group = blockIdx.x * kRowWarps + threadIdx.x / kWarp; group < groups;
       group += gridDim.x * kRowWarps)
    f(static_cast<int64_t>(group) * kGroup, min(kGroup, rows - group * kGroup));
}

// How many rows are of an atom. All threads of a block must call it.
__device__ __forceinline__ int rows_of_atoms(const RowArgs& p) {
  return gpu_attention::is_bad(p.bad) ? p.rows : min(max(*p.last, 0), p.rows);
}

template <int Units>
__device__ __forceinline__ void store_zeros(float* to, int columns, int count, int stride) {
  const Rows<Units> zeros{};
  store_rows<Units>(zeros, to, columns, count, stride);
}

// x to length 1, if it is to be; by what it was multiplied.
template <int Units>
__device__ __forceinline__ void shorten(Rows<Units>& x, const RowArgs& p, float (&shrink)[2]) {
  shrink[0] = shrink[1] = 1;
  if (!p.normalize) return;
  float squares[2];
  sum_rows<Units>(squares, p.width, [&](int unit, int k) { return x[unit][k] * x[unit][k]; });
#pragma unroll
  for (int h = 0; h < 2; ++h) shrink[h] = UnitRow<float>(squares[h]).inverse;
#pragma unroll
  for (int unit = 0; unit < Units; ++unit)
#pragma unroll
    for (int k = 0; k < 4; ++k) x[unit][k] *= shrink[k / 2];
}

// dx of x = h / |h| to that of h.
template <int Units>
__device__ __forceinline__ void lengthen(Rows<Units>& dx, const Rows<Units>& x, const RowArgs& p,
                                         const float (&shrink)[2]) {
  float along[2];
  sum_rows<Units>(along, p.width, [&](int unit, int k) { return dx[unit][k] * x[unit][k]; });
#pragma unroll
  for (int h = 0; h < 2; ++h)
    if (shrink[h] >= static_cast<float>(1 / kShortest)) along[h] = 0;
#pragma unroll
  for (int unit = 0; unit < Units; ++unit)
#pragma unroll
    for (int k = 0; k < 4; ++k) dx[unit][k] = (dx[unit][k] - along[k / 2] * x[unit][k]) * shrink[k / 2];
}

// q, or the gradient by it, times the factors.
template <int Units>
__device__ __forceinline__ void multiply_factors(Rows<Units>& x, const RowArgs& p, int part) {
  if (part != 0 || !p.factors) return;
#pragma unroll
  for (int unit = 0; unit < Units; ++unit)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (column_of(unit, k) < p.width) x[unit][k] *= p.factors[column_of(unit, k)];
}

// q, k or v of 16 rows as attention takes them and as the backward pass does.
template <int Units>
__device__ __forceinline__ void keep_part(Rows<Units>& x, const RowArgs& p, int part, int64_t first,
                                          int count) {
  float shrink[2];
  shorten<Units>(x, p, shrink);
  if (part == 0 && p.factors) {
    store_rows<Units>(x, p.unit_q + first * p.width, p.width, count);
    multiply_factors<Units>(x, p, part);
  }
  store_rows<Units>(x, p.part[part] + first * p.width, p.width, count);
  store_numbers(shrink, p.shrink[part] + first, count);
}

// The gradient by what was kept to that by what it was made of.
template <int Units>
__device__ __forceinline__ void part_gradient(Rows<Units>& dx, const RowArgs& p, int part, int64_t first,
                                              int count) {
  multiply_factors<Units>(dx, p, part);
  if (!p.normalize) return;
  float shrink[2];
  Rows<Units> x;
  const float* const kept = part == 0 && p.factors ? p.unit_q : p.part[part];
  load_rows<Units>(x, kept + first * p.width, p.width, count);
  load_numbers(shrink, p.shrink[part] + first, count);
  lengthen<Units>(dx, x, p, shrink);
}

// Features and width in units of 16: F and W.
template <int F, int W>
__global__ void __launch_bounds__(kRowThreads, 1) project_kernel(RowArgs p) {
  char* const memory = gpu_attention::block_memory();
  constexpr int kBytes = Factor<F, 2 * W>::kBytes;
  BlockNumbers& numbers = block_numbers((p.end - p.begin) * kBytes);
  for (int part = p.begin; part < p.end; ++part) {
    const float found =
        fill_factor<F, 2 * W>(memory + (part - p.begin) * kBytes, p.features, p.width, &numbers.largest,
                              [&](int k, int n) { return p.project[(k * 3 + part) * p.width + n]; });
    if (threadIdx.x == 0) numbers.inverse[part] = found;
  }
  __syncthreads();
  const int rows = min(max(*p.last, 0), p.rows);
  each_group(rows, [&](int64_t first, int count) {
    Rows<2 * F> g;
    load_rows<2 * F>(g, p.g + first * p.features, p.features, count);
#pragma unroll 1
    for (int part = p.begin; part < p.end; ++part) {
      Rows<2 * W> x{};
      add_product<F, 2 * W>(x, g, memory + (part - p.begin) * kBytes, numbers.inverse[part]);
      const float* const bias = p.project_bias + part * p.width;
#pragma unroll
      for (int unit = 0; unit < 2 * W; ++unit)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (column_of(unit, k) < p.width) x[unit][k] += bias[column_of(unit, k)];
      keep_part<2 * W>(x, p, part, first, count);
    }
  });
}

template <int W>
__global__ void __launch_bounds__(kRowThreads, kLightBlocks) take_kernel(RowArgs p) {
  const int rows = min(max(*p.last, 0), p.rows);
  each_group(rows, [&](int64_t first, int count) {
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
      Rows<2 * W> x;
      const float* const from = p.g + first * p.columns + p.parts_begin + part * p.width;
      load_rows<2 * W>(x, from, p.width, count, p.columns);
      keep_part<2 * W>(x, p, part, first, count);
    }
  });
}

// x + g + b_o of 16 rows.
template <int Units>
__device__ __forceinline__ void add_input(Rows<Units>& x, const RowArgs& p, int64_t first, int count) {
  Rows<Units> g;
  load_rows<Units>(g, p.g + first * p.columns, p.features, count, p.columns);
#pragma unroll
  for (int unit = 0; unit < Units; ++unit)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (column_of(unit, k) < p.features) x[unit][k] += g[unit][k] + p.out_bias[column_of(unit, k)];
}

// `o` (rows, width) to `result` (rows, features).
template <int F, int W>
__global__ void __launch_bounds__(kRowThreads, 1) finish_kernel(RowArgs p, const float* o, float* result) {
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(Factor<W, 2 * F>::kBytes);
  const float inverse = fill_factor<W, 2 * F>(memory, p.width, p.features, &numbers.largest,
                                              [&](int k, int n) { return p.out[k * p.features + n]; });
  const int rows = rows_of_atoms(p);
  each_group(p.rows, [&](int64_t first, int count) {
    const int in_group = count;
    count = static_cast<int>(max(int64_t{0}, min(int64_t{count}, rows - first)));  // of atoms
    if (count < in_group)
      store_zeros<2 * F>(result + (first + count) * p.features, p.features, in_group - count, p.features);
    if (count == 0) return;
    Rows<2 * F> x{};
    {
      Rows<2 * W> in;
      load_rows<2 * W>(in, o + first * p.width, p.width, count);
      add_product<W, 2 * F>(x, in, memory, inverse);
    }
    store_rows<2 * F>(x, p.o_out + first * p.features, p.features, count);
    add_input<2 * F>(x, p, first, count);
    float mean[2], deviation[2];
    sum_rows<2 * F>(mean, p.features, [&](int unit, int k) { return x[unit][k]; });
    mean[0] /= p.features, mean[1] /= p.features;
    sum_rows<2 * F>(deviation, p.features, [&](int unit, int k) {
      const float from = x[unit][k] - mean[k / 2];
      return from * from;
    });
#pragma unroll
    for (int h = 0; h < 2; ++h) deviation[h] = 1 / sqrtf(deviation[h] / p.features + p.eps);
#pragma unroll
    for (int unit = 0; unit < 2 * F; ++unit)
#pragma unroll
      for (int k = 0; k < 4; ++k) x[unit][k] = (x[unit][k] - mean[k / 2]) * deviation[k / 2];
    store_numbers(mean, p.mean + first, count), store_numbers(deviation, p.deviation + first, count);
#pragma unroll
    for (int unit = 0; unit < 2 * F; ++unit)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int column = column_of(unit, k);
        if (column < p.features) x[unit][k] = x[unit][k] * p.norm[column] + p.norm_bias[column];
      }
    store_rows<2 * F>(x, result + first * p.features, p.features, count);
  });
}

// `grad` (rows, features) to `dh` (rows, features), which are `columns` apart in memory, `grad_o` (rows,
// width) and `delta` (rows,). o itself is not kept: do.o = dh.(o W_o), and o W_o is what h came from without
// g and b_o.
template <int F, int W>
__global__ void __launch_bounds__(kRowThreads, 1)
    begin_kernel(RowArgs p, const float* grad, float* dh, int columns, float* grad_o, float* delta) {
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(Factor<F, 2 * W>::kBytes);
  const float inverse = fill_factor<F, 2 * W>(memory, p.features, p.width, &numbers.largest,
                                              [&](int k, int n) { return p.out[n * p.features + k]; });
  each_group(min(max(*p.last, 0), p.rows), [&](int64_t first, int count) {
    Rows<2 * F> x;
    float deviation[2], mean[2], along[2], whole[2], sum[2];
    load_rows<2 * F>(x, grad + first * p.features, p.features, count);
    load_numbers(deviation, p.deviation + first, count), load_numbers(mean, p.mean + first, count);
    {
      Rows<2 * F> product, h;
      load_rows<2 * F>(product, p.o_out + first * p.features, p.features, count);
#pragma unroll
      for (int unit = 0; unit < 2 * F; ++unit)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          h[unit][k] = product[unit][k];
          if (column_of(unit, k) < p.features) x[unit][k] *= p.norm[column_of(unit, k)];
        }
      add_input<2 * F>(h, p, first, count);
#pragma unroll
      for (int unit = 0; unit < 2 * F; ++unit)
#pragma unroll
        for (int k = 0; k < 4; ++k) h[unit][k] = (h[unit][k] - mean[k / 2]) * deviation[k / 2];
      sum_rows<2 * F>(whole, p.features, [&](int unit, int k) { return x[unit][k]; });
      sum_rows<2 * F>(along, p.features, [&](int unit, int k) { return x[unit][k] * h[unit][k]; });
#pragma unroll
      for (int unit = 0; unit < 2 * F; ++unit)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int i = k / 2;
          const float rest = x[unit][k] - whole[i] / p.features - h[unit][k] * (along[i] / p.features);
          x[unit][k] = column_of(unit, k) < p.features ? rest * deviation[i] : 0.0f;
        }
      sum_rows<2 * F>(sum, p.features, [&](int unit, int k) { return x[unit][k] * product[unit][k]; });
    }
    store_rows<2 * F>(x, dh + first * columns, p.features, count, columns);
    store_numbers(sum, delta + first, count);
    Rows<2 * W> o{};
    add_product<F, 2 * W>(o, x, memory, inverse);
    store_rows<2 * W>(o, grad_o + first * p.width, p.width, count);
  });
}

struct PartGradients {
  const float* of[3];  // of q, k and v, (rows, width)
};

// `from` (rows, features) and what the parts of this launch add, to `result`.
template <int F, int W>
__global__ void __launch_bounds__(kRowThreads, 1)
    collect_kernel(RowArgs p, PartGradients d, const float* from, float* result) {
  char* const memory = gpu_attention::block_memory();
  constexpr int kBytes = Factor<W, 2 * F>::kBytes;
  BlockNumbers& numbers = block_numbers((p.end - p.begin) * kBytes);
  for (int part = p.begin; part < p.end; ++part) {
    const float found =
        fill_factor<W, 2 * F>(memory + (part - p.begin) * kBytes, p.width, p.features, &numbers.largest,
                              [&](int k, int n) { return p.project[(n * 3 + part) * p.width + k]; });
    if (threadIdx.x == 0) numbers.inverse[part] = found;
  }
  const int rows = rows_of_atoms(p);
  each_group(p.rows, [&](int64_t first, int count) {
    const int in_group = count;
    count = static_cast<int>(max(int64_t{0}, min(int64_t{count}, rows - first)));  // of atoms
    if (count < in_group)
      store_zeros<2 * F>(result + (first + count) * p.features, p.features, in_group - count, p.features);
    if (count == 0) return;
    Rows<2 * F> sum;
    load_rows<2 * F>(sum, from + first * p.features, p.features, count);
#pragma unroll 1
    for (int part = p.begin; part < p.end; ++part) {
      Rows<2 * W> dx;
      load_rows<2 * W>(dx, d.of[part] + first * p.width, p.width, count);
      part_gradient<2 * W>(dx, p, part, first, count);
      add_product<W, 2 * F>(sum, dx, memory + (part - p.begin) * kBytes, numbers.inverse[part]);
    }
    store_rows<2 * F>(sum, result + first * p.features, p.features, count);
  });
}

// The columns of the coordinates in `result` (rows, columns), whose others are there, but for rows of no
// atom.
template <int F, int W>
__global__ void __launch_bounds__(kRowThreads, kLightBlocks)
    give_kernel(RowArgs p, PartGradients d, float* result) {
  const int rows = rows_of_atoms(p), there = min(max(*p.last, 0), p.rows);
  each_group(p.rows, [&](int64_t first, int count) {
    const auto of = [&](int most) {
      return static_cast<int>(max(int64_t{0}, min(int64_t{count}, most - first)));
    };
    float* const to = result + first * p.columns;
    if (of(there) < count)
      store_zeros<2 * F>(to + of(there) * p.columns, p.features, count - of(there), p.columns);
    const int between = p.parts_begin - p.features;
    for (int k = lane_index(); k < between * count; k += kWarp)
      to[k / between * p.columns + p.features + k % between] = 0;
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
      Rows<2 * W> dx;
      load_rows<2 * W>(dx, d.of[part] + first * p.width, p.width, of(rows));
      part_gradient<2 * W>(dx, p, part, first, of(rows));
      store_rows<2 * W>(dx, to + p.parts_begin + part * p.width, p.width, count, p.columns);
    }
  });
}

}  // namespace gpu_attention_layer
}  // namespace mdops
