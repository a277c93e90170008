// What is between the attention of layers of coordinates, row by row, and the sums behind them: products by
// tensor cores, to the accuracy of float32 (attention_layer/gpu_row_tiles.h). attention/gpu_forward.h and
// gpu_backward.h are between.
//
//   forward    join_kernel       y = x X + o O + c, x of the next layer, and of that its q, k and v
//              end_kernel        y, and x behind the last layer
//              sums_kernel       T = sum_j R_j (w x + b)
//   backward   end_back_kernel   from T's gradient by R and x to those by o and x of the last layer; delta =
//                                do.o
//              join_back_kernel  from those by x, q, k and v of a layer to those by o and x of the one
//              before;
//                                delta
//
// A layer's x and attention are 16 I columns wide, those of the next 16 N; M, of the last, is any even
// number.
#pragma once

#include "attention_layer/gpu_row_tiles.h"
#include "attention_moments/attention_moments.h"

namespace mdops {
namespace gpu_attention_moments {

using gpu_attention_layer::add_product;
using gpu_attention_layer::ask_for_rows;
using gpu_attention_layer::block_numbers;
using gpu_attention_layer::BlockNumbers;
using gpu_attention_layer::column_of;
using gpu_attention_layer::each_group;
using gpu_attention_layer::Factor;
using gpu_attention_layer::FeatureRows;
using gpu_attention_layer::fill_columns;
using gpu_attention_layer::fill_factor;
using gpu_attention_layer::kRowThreads;
using gpu_attention_layer::lengthen;
using gpu_attention_layer::load_numbers;
using gpu_attention_layer::load_rows;
using gpu_attention_layer::Parts;
using gpu_attention_layer::row_of;
using gpu_attention_layer::Rows;
using gpu_attention_layer::rows_of_atoms;
using gpu_attention_layer::RowShape;
using gpu_attention_layer::shorten;
using gpu_attention_layer::store_numbers;
using gpu_attention_layer::store_rows;
using gpu_attention_layer::sum_rows;
using gpu_attention_layer::with_columns;

constexpr int kSumWarps = 4;  // of a block that has one atom

// Rows of 16 U columns, all there.
template <int U>
using FullRows = RowShape<true, 2 * U, 2 * U>;

struct JoinArgs {
  int rows, features;
  const int32_t *last, *bad;  // as of attention_layer's RowArgs
  bool normalize;
  float eps;
  const float *x, *o;  // rows of the layer before; those of x are `stride` numbers apart
  int64_t stride;
  const float *inner, *out, *bias;
  int columns;  // of x behind it
  float *next, *deviation;
  // Of the layer behind it, if there is one.
  const float *project, *project_bias, *factors;
  float *part[3], *shrink[3];
};

// Which numbers of columns a block has.
enum OfColumns { kJoinBias, kPartBias, kPartFactors = 4, kNorm = 1, kNormBias, kInverseFactors = 0 };

// Bytes of the factors in shared memory; of the joint ones X is first, then O.
template <int I, int Units>
constexpr int kJoinBytes = 2 * Factor<I, Units>::kBytes;
template <int N>
constexpr int kProjectBytes = 3 * Factor<N, 2 * N>::kBytes;

// X and O to shared memory, and c.
template <int I, int Units>
__device__ __forceinline__ void fill_join(const JoinArgs& p, char* memory, BlockNumbers& numbers) {
  fill_columns(numbers, kJoinBias, p.bias, p.columns);
  for (int k = 0; k < 2; ++k) {
    const float* const factor = k ? p.out : p.inner;
    const float found =
        fill_factor<I, Units>(memory + k * Factor<I, Units>::kBytes, 16 * I, p.columns, &numbers.largest,
                              [&](int row, int n) { return factor[row * p.columns + n]; });
    if (threadIdx.x == 0) numbers.inverse[k] = found;
  }
}

// x behind a layer, of 16 rows. `Spares` registers: o is read when the product with x is done.
template <int I, class To, bool Spares>
__device__ __forceinline__ void join(const JoinArgs& p, const char* memory, const BlockNumbers& numbers,
                                     int64_t first, int count, Rows<To::kUnits>& y) {
  constexpr int kUnits = To::kUnits;
  Rows<2 * I> x, o;
  const auto load_o = [&] { load_rows<FullRows<I>>(o, p.o + first * 16 * I, 16 * I, count, 16 * I); };
  load_rows<FullRows<I>>(x, p.x + first * p.stride, 16 * I, count, p.stride);
  if constexpr (!Spares) load_o();
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
    for (int k = 0; k < 4; ++k) y[unit][k] = 0;
  add_product<I, kUnits>(y, x, memory, numbers.inverse[0]);
  if constexpr (Spares) {
    asm volatile("" ::: "memory");
    load_o();
  }
  add_product<I, kUnits>(y, o, memory + Factor<I, kUnits>::kBytes, numbers.inverse[1]);
  with_columns<kUnits>(y, numbers.of_columns[kJoinBias], [](float& z, float bias) { z += bias; });
  float deviation[2];
  sum_rows<kUnits>(deviation, [&](int unit, int k) { return y[unit][k] * y[unit][k]; });
#pragma unroll
  for (int h = 0; h < 2; ++h) deviation[h] = 1 / sqrtf(deviation[h] / p.features + p.eps);
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit)
#pragma unroll
    for (int k = 0; k < 4; ++k) y[unit][k] *= deviation[k / 2];
  store_rows<To>(y, p.next + first * p.columns, p.columns, count, p.columns);
  store_numbers(deviation, p.deviation + first, count);
}

template <int I>
__device__ __forceinline__ void ask_for_join(const JoinArgs& p, int64_t next, int rows) {
  ask_for_rows(p.x, next, rows, 16 * I, p.stride), ask_for_rows(p.o, next, rows, 16 * I, 16 * I);
}

template <int I, int N>
__global__ void __launch_bounds__(kRowThreads, 2) join_kernel(JoinArgs p) {
  using Next = FullRows<N>;
  constexpr int kJoin = kJoinBytes<I, 2 * N>, kPart = Factor<N, 2 * N>::kBytes;
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(kJoin + kProjectBytes<N>);
  fill_join<I, 2 * N>(p, memory, numbers);
  fill_columns(numbers, kPartFactors, p.factors, 16 * N);
  for (int part = 0; part < 3; ++part) {
    fill_columns(numbers, kPartBias + part, p.project_bias + part * 16 * N, 16 * N);
    const float found =
        fill_factor<N, 2 * N>(memory + kJoin + part * kPart, 16 * N, 16 * N, &numbers.largest,
                              [&](int k, int n) { return p.project[(k * 3 + part) * 16 * N + n]; });
    if (threadIdx.x == 0) numbers.inverse[2 + part] = found;
  }
  __syncthreads();
  const int rows = rows_of_atoms(p.last, p.bad, p.rows);
  each_group(rows, [&](int64_t first, int count, int64_t next) {
    ask_for_join<I>(p, next, rows);
    Rows<2 * N> x;
    join<I, Next, true>(p, memory, numbers, first, count, x);
    const float scale = gpu_attention::scale_of_units<Parts>(x);
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
      Rows<2 * N> own{};
      float shrink[2];
      add_product<N, 2 * N>(own, x, scale, memory + kJoin + part * kPart, numbers.inverse[2 + part]);
      with_columns<2 * N>(own, numbers.of_columns[kPartBias + part], [](float& y, float by) { y += by; });
      shorten<2 * N>(own, p.normalize, shrink);
      store_numbers(shrink, p.shrink[part] + first, count);
      if (part == 0)
        with_columns<2 * N>(own, numbers.of_columns[kPartFactors], [](float& y, float by) { y *= by; });
      store_rows<Next>(own, p.part[part] + first * 16 * N, 16 * N, count, 16 * N);
    }
  });
}

template <int I, int F>
__global__ void __launch_bounds__(kRowThreads, 1) end_kernel(JoinArgs p) {
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(kJoinBytes<I, 2 * F>);
  fill_join<I, 2 * F>(p, memory, numbers);
  __syncthreads();
  const int rows = rows_of_atoms(p.last, p.bad, p.rows);
  each_group(rows, [&](int64_t first, int count, int64_t next) {
    ask_for_join<I>(p, next, rows);
    Rows<2 * F> x;
    join<I, FeatureRows<true, F>, false>(p, memory, numbers, first, count, x);
  });
}

struct SumArgs {
  int rows, features, atoms;
  const int32_t *offsets, *bad;
  const float *x, *environment, *norm, *norm_bias;
  float* atom;  // of each row, for the backward pass
};

// A block an atom, a warp each fourth of its rows, a lane V columns of V kWarp.
template <int V>
__global__ void __launch_bounds__(kSumWarps* kWarp) sums_kernel(SumArgs p, float* out) {
  using Vector = std::conditional_t<V == 4, float4, float2>;
  __shared__ float sums[kSumWarps][4][V * kWarp], of_rows[kSumWarps][4];
  const int atom = blockIdx.x, lane = lane_index(), warp = threadIdx.x / kWarp;
  const bool bad = gpu_attention::is_bad(p.bad);
  const int begin = bad ? 0 : p.offsets[atom], end = bad ? 0 : p.offsets[atom + 1];
  for (int at = 0; at < p.features; at += V * kWarp) {
    const int k = at + V * lane;
    float sum[4][V] = {}, of_row[4] = {};
#pragma unroll 4
    for (int j = begin + warp; j < end; j += kSumWarps) {
      const float4 r = *reinterpret_cast<const float4*>(p.environment + 4 * static_cast<int64_t>(j));
      Vector x{};
      if (k < p.features)
        x = *reinterpret_cast<const Vector*>(p.x + static_cast<int64_t>(j) * p.features + k);
      const float four[4] = {r.x, r.y, r.z, r.w}, *const numbers = reinterpret_cast<const float*>(&x);
#pragma unroll
      for (int a = 0; a < 4; ++a) {
        of_row[a] += four[a];
#pragma unroll
        for (int v = 0; v < V; ++v) sum[a][v] += four[a] * numbers[v];
      }
      if (at == 0 && lane == 0) p.atom[j] = __int_as_float(atom);
    }
#pragma unroll
    for (int a = 0; a < 4; ++a) {
      if (lane == 0) of_rows[warp][a] = of_row[a];
#pragma unroll
      for (int v = 0; v < V; ++v) sums[warp][a][V * lane + v] = sum[a][v];
    }
    __syncthreads();
    for (int n = threadIdx.x; n < 4 * V * kWarp; n += kSumWarps * kWarp) {
      const int a = n / (V * kWarp), column = n % (V * kWarp);
      if (at + column >= p.features) continue;
      float total = bad ? not_a_number<float>() : 0.0f, whole = 0;
      for (int w = 0; w < kSumWarps; ++w) total += sums[w][a][column], whole += of_rows[w][a];
      out[(4 * static_cast<int64_t>(atom) + a) * p.features + at + column] =
          p.norm[at + column] * total + p.norm_bias[at + column] * whole;
    }
    __syncthreads();
  }
}

// What a backward pass has besides: the gradients by x and o of the layer before, rows of the first
// `back_stride` numbers apart.
struct BackArgs : JoinArgs {
  float *by_x, *by_o, *delta;
  int64_t back_stride;
  // From the layer behind it: by its q, k and v, and by its x.
  const float *of_part[3], *of_next;
  // From T behind the last one.
  int atoms;
  const float *environment, *norm, *norm_bias, *atom, *grad;
  float* by_environment;
};

// X^T and O^T to shared memory.
template <int Steps, int I>
__device__ __forceinline__ void fill_back(const BackArgs& p, char* memory, BlockNumbers& numbers) {
  for (int k = 0; k < 2; ++k) {
    const float* const factor = k ? p.out : p.inner;
    const float found = fill_factor<Steps, 2 * I>(
        memory + k * Factor<Steps, 2 * I>::kBytes, p.columns, 16 * I, &numbers.largest,
        [&](int row, int n) { return factor[n * p.columns + row]; });
    if (threadIdx.x == 0) numbers.inverse[k] = found;
  }
}

// The gradient by x behind a layer, in `dx`, to those by x before it and by o.
template <int Steps, int I, class From>
__device__ __forceinline__ void join_back(const BackArgs& p, const char* memory, const BlockNumbers& numbers,
                                          int64_t first, int count, Rows<From::kUnits>& dx,
                                          const Rows<From::kUnits>& x) {
  using Before = FullRows<I>;
  float along[2], deviation[2];
  load_numbers(deviation, p.deviation + first, count);
  sum_rows<From::kUnits>(along, [&](int unit, int k) { return dx[unit][k] * x[unit][k]; });
#pragma unroll
  for (int unit = 0; unit < From::kUnits; ++unit)
#pragma unroll
    for (int k = 0; k < 4; ++k)
      dx[unit][k] = deviation[k / 2] * (dx[unit][k] - x[unit][k] * (along[k / 2] / p.features));
  const float scale = gpu_attention::scale_of_units<Parts>(dx);
  Rows<2 * I> o, by_o{};
  load_rows<Before>(o, p.o + first * 16 * I, 16 * I, count, 16 * I);
  add_product<Steps, 2 * I>(by_o, dx, scale, memory + Factor<Steps, 2 * I>::kBytes, numbers.inverse[1]);
  store_rows<Before>(by_o, p.by_o + first * 16 * I, 16 * I, count, 16 * I);
  float delta[2];
  sum_rows<2 * I>(delta, [&](int unit, int k) { return by_o[unit][k] * o[unit][k]; });
  store_numbers(delta, p.delta + first, count);
  Rows<2 * I> by_x{};
  add_product<Steps, 2 * I>(by_x, dx, scale, memory, numbers.inverse[0]);
  store_rows<Before>(by_x, p.by_x + first * p.back_stride, 16 * I, count, p.back_stride);
}

template <int I, int N>
__global__ void __launch_bounds__(kRowThreads, 1) join_back_kernel(BackArgs p) {
  using Next = FullRows<N>;
  constexpr int kBack = kJoinBytes<N, 2 * I>, kPart = Factor<N, 2 * N>::kBytes;
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(kBack + kProjectBytes<N>);
  fill_back<N, I>(p, memory, numbers);
  fill_columns(numbers, kPartFactors, p.factors, 16 * N);
  if (threadIdx.x < 16 * N) numbers.of_columns[kInverseFactors][threadIdx.x] = 1 / p.factors[threadIdx.x];
  for (int part = 0; part < 3; ++part) {
    const float found =
        fill_factor<N, 2 * N>(memory + kBack + part * kPart, 16 * N, 16 * N, &numbers.largest,
                              [&](int k, int n) { return p.project[(n * 3 + part) * 16 * N + k]; });
    if (threadIdx.x == 0) numbers.inverse[2 + part] = found;
  }
  __syncthreads();
  const int rows = rows_of_atoms(p.last, p.bad, p.rows);
  const auto ask = [&](int part, int64_t at) {
    ask_for_rows(p.of_part[part], at, rows, 16 * N, 16 * N);
    if (p.normalize) ask_for_rows(p.part[part], at, rows, 16 * N, 16 * N);
  };
  each_group(rows, [&](int64_t first, int count, int64_t next) {
    const int64_t at = first * 16 * N;
    Rows<2 * N> sum;
    load_rows<Next>(sum, p.of_next + at, 16 * N, count, 16 * N);
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
      Rows<2 * N> dx, unit;
      float shrink[2] = {1, 1};
      load_rows<Next>(dx, p.of_part[part] + at, 16 * N, count, 16 * N);
      if (p.normalize) {
        load_rows<Next>(unit, p.part[part] + at, 16 * N, count, 16 * N);
        load_numbers(shrink, p.shrink[part] + first, count);
      }
      ask(part == 2 ? 0 : part + 1, part == 2 ? next : first);
      if (part == 0) {
        with_columns<2 * N>(dx, numbers.of_columns[kPartFactors], [](float& y, float by) { y *= by; });
        // What has the length 1.
        with_columns<2 * N>(unit, numbers.of_columns[kInverseFactors], [](float& y, float by) { y *= by; });
      }
      if (p.normalize) lengthen<2 * N>(dx, unit, shrink);
      add_product<N, 2 * N>(sum, dx, memory + kBack + part * kPart, numbers.inverse[2 + part]);
    }
    Rows<2 * N> x;
    load_rows<Next>(x, p.next + at, 16 * N, count, 16 * N);
    join_back<N, I, Next>(p, memory, numbers, first, count, sum, x);
  });
}

// One of four, without an array that a lane's number would index.
__device__ __forceinline__ float pick(const float (&x)[4], int k) {
  return k == 0 ? x[0] : k == 1 ? x[1] : k == 2 ? x[2] : x[3];
}

// The gradient by x behind the last layer, of 16 rows, and by R.
template <int F>
__device__ __forceinline__ void from_sums(const BackArgs& p, const BlockNumbers& numbers, int64_t first,
                                          int count, const Rows<2 * F>& x, Rows<2 * F>& dx) {
  using Features = FeatureRows<true, F>;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t row = first + min(row_of(2 * h), count - 1);
    const float4 of_row = *reinterpret_cast<const float4*>(p.environment + 4 * row);
    const int atom = min(max(__float_as_int(p.atom[row]), 0), p.atoms - 1);
    const float r[4] = {of_row.x, of_row.y, of_row.z, of_row.w};
    const float* const grad = p.grad + 4 * static_cast<int64_t>(atom) * p.features;
    float by_r[4] = {};
#pragma unroll
    for (int unit = 0; unit < 2 * F; ++unit) {
      const int column = column_of(unit, 0);
      const float2 w = *reinterpret_cast<const float2*>(numbers.of_columns[kNorm] + column);
      const float2 b = *reinterpret_cast<const float2*>(numbers.of_columns[kNormBias] + column);
      const float one = w.x * x[unit][2 * h] + b.x, two = w.y * x[unit][2 * h + 1] + b.y;
      float2 sum = make_float2(0, 0);
#pragma unroll
      for (int a = 0; a < 4; ++a) {
        float2 g = make_float2(0, 0);
        if (Features::has(unit, 0, p.features))
          g = *reinterpret_cast<const float2*>(grad + a * p.features + column);
        by_r[a] += g.x * one + g.y * two;
        sum.x += r[a] * g.x, sum.y += r[a] * g.y;
      }
      dx[unit][2 * h] = w.x * sum.x, dx[unit][2 * h + 1] = w.y * sum.y;
    }
#pragma unroll
    for (int a = 0; a < 4; ++a) by_r[a] = gpu_attention::quad_sum(by_r[a]);
    if (row_of(2 * h) < count) p.by_environment[4 * row + lane_index() % 4] = pick(by_r, lane_index() % 4);
  }
}

template <int I, int F>
__global__ void __launch_bounds__(kRowThreads, 1) end_back_kernel(BackArgs p) {
  using Features = FeatureRows<true, F>;
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(kJoinBytes<F, 2 * I>);
  fill_columns(numbers, kNorm, p.norm, p.features), fill_columns(numbers, kNormBias, p.norm_bias, p.features);
  fill_back<F, I>(p, memory, numbers);
  __syncthreads();
  const int rows = min(max(*p.last, 0), p.rows);
  each_group(rows, [&](int64_t first, int count, int64_t next) {
    ask_for_rows(p.next, next, rows, p.features, p.features), ask_for_rows(p.o, next, rows, 16 * I, 16 * I);
    Rows<2 * F> x, dx;
    load_rows<Features>(x, p.next + first * p.features, p.features, count, p.features);
    from_sums<F>(p, numbers, first, count, x, dx);
    join_back<F, I, Features>(p, memory, numbers, first, count, dx, x);
  });
}

}  // namespace gpu_attention_moments
}  // namespace mdops
