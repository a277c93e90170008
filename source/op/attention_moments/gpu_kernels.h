// The steps between the attention of layers of coordinates, row by row, up to the last one (after it:
// gpu_end.h): products by tensor cores, to the accuracy of float32 (attention_layer/gpu_row_tiles.h).
// attention/gpu_forward.h and gpu_backward.h run between them.
//
//   forward    join_kernel       y = x X + o O + c, x of the next layer, and its q, k and v
//   backward   join_back_kernel  from the gradients by x, q, k and v of a layer to those by o and x
//                                of the previous one; delta = do.o
//
// A layer's x and attention are 16 I columns wide, those of the next 16 N.
#pragma once

#include "attention_layer/gpu_row_tiles.h"
#include "attention_moments/attention_moments.h"
#include "common/gpu_unroll.h"

namespace mdops::gpu_attention_moments {

using gpu_attention_layer::add_product, gpu_attention_layer::ask_for_rows, gpu_attention_layer::block_numbers,
    gpu_attention_layer::BlockNumbers, gpu_attention_layer::each_group, gpu_attention_layer::Factor,
    gpu_attention_layer::fill_columns, gpu_attention_layer::fill_factor, gpu_attention_layer::kRowThreads,
    gpu_attention_layer::lengthen, gpu_attention_layer::load_numbers, gpu_attention_layer::load_rows,
    gpu_attention_layer::Operands, gpu_attention_layer::Parts, gpu_attention_layer::Rows,
    gpu_attention_layer::rows_of_atoms, gpu_attention_layer::RowShape, gpu_attention_layer::shorten,
    gpu_attention_layer::store_numbers, gpu_attention_layer::store_rows, gpu_attention_layer::sum_rows,
    gpu_attention_layer::with_columns;

// Full rows of 16 U columns.
template <int U>
using FullRows = RowShape<true, 2 * U, 2 * U>;

struct JoinArgs {
  int rows, features;
  const int32_t *last, *bad;  // as in attention_layer's RowArgs
  bool normalize;
  float eps;
  const float *x, *o;  // rows of the previous layer; those of x are `stride` numbers apart
  int64_t stride;
  const float *inner, *out, *bias;
  int columns;  // of its output x
  float *next, *deviation;
  // For the next layer, if there is one.
  const float *project, *project_bias, *factors;
  float *part[3], *shrink[3];
  // For the sums after the last layer, if this is it; `atom` of each row is for the backward pass.
  int atoms;
  const int32_t* offsets;
  const float *environment, *norm, *norm_bias;
  float* atom;
};

// Indices of a block's per-column numbers.
enum OfColumns { kJoinBias, kPartBias, kPartFactors = 4, kInverseFactors = 0 };

// Bytes of the factors in shared memory; the joint ones are X, then O.
template <int I, int Units>
constexpr int kJoinBytes = 2 * Factor<I, Units>::kBytes;
template <int N>
constexpr int kProjectBytes = 3 * Factor<N, 2 * N>::kBytes;

// Copies X and O to shared memory, and c.
template <int I, int Units, bool Across = false, int Threads = kRowThreads>
MDOPS_D void fill_join(const JoinArgs& p, char* memory, BlockNumbers& numbers) {
  fill_columns(numbers, kJoinBias, p.bias, p.columns);
  for (int k = 0; k < 2; ++k) {
    const float* const factor = k ? p.out : p.inner;
    const float found = fill_factor<I, Units, Across, Threads>(
        memory + k * Factor<I, Units>::kBytes, 16 * I, p.columns, &numbers.largest,
        [&](int row, int n) { return factor[row * p.columns + n]; });
    if (threadIdx.x == 0) numbers.inverse[k] = found;
  }
}

// x after a layer, for 16 rows. o is read after the product with x, to save registers.
template <int I, class To>
MDOPS_D void join(const JoinArgs& p, const char* memory, const BlockNumbers& numbers, int64_t first,
                  int count, Rows<To::kUnits>& y) {
  constexpr int kUnits = To::kUnits;
  Rows<2 * I> x;
  load_rows<FullRows<I>>(x, p.x + first * p.stride, 16 * I, count, p.stride);
  unrolled<kUnits, 4>([&](int unit, int k) { y[unit][k] = 0; });
  add_product<I, kUnits>(y, x, memory, numbers.inverse[0]);
  asm volatile("" ::: "memory");
  load_rows<FullRows<I>>(x, p.o + first * 16 * I, 16 * I, count, 16 * I);
  add_product<I, kUnits>(y, x, memory + Factor<I, kUnits>::kBytes, numbers.inverse[1]);
  with_columns<kUnits>(y, numbers.of_columns[kJoinBias], [](float& z, float bias) { z += bias; });
  float deviation[2];
  sum_rows<kUnits>(deviation, [&](int unit, int k) { return y[unit][k] * y[unit][k]; });
#pragma unroll
  for (int h = 0; h < 2; ++h) deviation[h] = 1 / sqrtf(deviation[h] / p.features + p.eps);
  unrolled<kUnits, 4>([&](int unit, int k) { y[unit][k] *= deviation[k / 2]; });
  store_rows<To>(y, p.next + first * p.columns, p.columns, count, p.columns);
  store_numbers(deviation, p.deviation + first, count);
}

template <int I>
MDOPS_D void ask_for_join(const JoinArgs& p, int64_t next, int rows) {
  ask_for_rows(p.x, next, rows, 16 * I, p.stride), ask_for_rows(p.o, next, rows, 16 * I, 16 * I);
}

// Copies the weights of q, k and v to shared memory, and their biases.
template <int N>
MDOPS_D void fill_project(const JoinArgs& p, char* memory, BlockNumbers& numbers) {
  for (int part = 0; part < 3; ++part) {
    fill_columns(numbers, kPartBias + part, p.project_bias + part * 16 * N, 16 * N);
    const float found =
        fill_factor<N, 2 * N>(memory + part * Factor<N, 2 * N>::kBytes, 16 * N, 16 * N, &numbers.largest,
                              [&](int k, int n) { return p.project[(k * 3 + part) * 16 * N + n]; });
    if (threadIdx.x == 0) numbers.inverse[2 + part] = found;
  }
}

// q, k or v of 16 rows of x, q without its factors, and the scale that normalizes it.
template <int N>
MDOPS_D void project(const JoinArgs& p, const char* memory, const BlockNumbers& numbers, int part,
                     const Operands<N>& x, Rows<2 * N>& own, float (&shrink)[2]) {
  unrolled<2 * N, 4>([&](int unit, int k) { own[unit][k] = 0; });
  add_product(own, x, memory + part * Factor<N, 2 * N>::kBytes, numbers.inverse[2 + part]);
  with_columns<2 * N>(own, numbers.of_columns[kPartBias + part], [](float& y, float by) { y += by; });
  shorten<2 * N>(own, p.normalize, shrink);
}

template <int I, int N>
__global__ void __launch_bounds__(kRowThreads, 2) join_kernel(JoinArgs p) {
  using Next = FullRows<N>;
  constexpr int kJoin = kJoinBytes<I, 2 * N>;
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(kJoin + kProjectBytes<N>);
  fill_join<I, 2 * N>(p, memory, numbers);
  fill_columns(numbers, kPartFactors, p.factors, 16 * N);
  fill_project<N>(p, memory + kJoin, numbers);
  __syncthreads();
  const int rows = rows_of_atoms(p.last, p.bad, p.rows);
  each_group(rows, [&](int64_t first, int count, int64_t next) {
    ask_for_join<I>(p, next, rows);
    Rows<2 * N> behind;
    join<I, Next>(p, memory, numbers, first, count, behind);
    const Operands<N> x(behind);
#pragma unroll 1
    for (int part = 0; part < 3; ++part) {
      Rows<2 * N> own;
      float shrink[2];
      project<N>(p, memory + kJoin, numbers, part, x, own, shrink);
      store_numbers(shrink, p.shrink[part] + first, count);
      if (part == 0)
        with_columns<2 * N>(own, numbers.of_columns[kPartFactors], [](float& y, float by) { y *= by; });
      store_rows<Next>(own, p.part[part] + first * 16 * N, 16 * N, count, 16 * N);
    }
  });
}

// T's gradient G and the weights after the last layer, for the columns of u = (x, o): H = w G Z^T of each
// atom, as operands of products, scaled by powers of two; Q = Z Z^T and, its last row, q = c Z^T.
struct TurnedGradient {
  uint2 *of_r, *of_u;  // H as B of R H and of u.H: (atoms, steps, lanes)
  float* numbers;      // (atoms, kTurnedNumbers)
  float* square;       // (columns of u + 1, columns of u)
};
// Per atom: h_a = c.(w G_a), g_a = b.G_a, and the scale of products with H.
enum OfTurned { kAlongBias = 0, kAlongNormBias = 4, kTurnedInverse = 8, kTurnedNumbers = 12 };

// Further arguments of a backward pass: the gradients by x and o of the previous layer, with rows of the
// first `back_stride` numbers apart.
struct BackArgs : JoinArgs {
  float *by_x, *by_o, *delta;
  int64_t back_stride;
  // From the next layer: by its q, k and v, and by its x.
  const float *of_part[3], *of_next;
  // From T after the last layer: its gradient, the results of `turn_kernel` (gpu_end.h), and by R.
  const float* grad;
  TurnedGradient turned;
  float* by_environment;
};

// Copies X^T and O^T to shared memory.
template <int Steps, int I>
MDOPS_D void fill_back(const BackArgs& p, char* memory, BlockNumbers& numbers) {
  for (int k = 0; k < 2; ++k) {
    const float* const factor = k ? p.out : p.inner;
    const float found = fill_factor<Steps, 2 * I>(
        memory + k * Factor<Steps, 2 * I>::kBytes, p.columns, 16 * I, &numbers.largest,
        [&](int row, int n) { return factor[n * p.columns + row]; });
    if (threadIdx.x == 0) numbers.inverse[k] = found;
  }
}

// Turns the gradient by x after a layer, in `dx`, into those by x before it and by o.
template <int Steps, int I, class From>
MDOPS_D void join_back(const BackArgs& p, const char* memory, const BlockNumbers& numbers, int64_t first,
                       int count, Rows<From::kUnits>& dx, const Rows<From::kUnits>& x) {
  using Before = FullRows<I>;
  float along[2], deviation[2];
  load_numbers(deviation, p.deviation + first, count);
  sum_rows<From::kUnits>(along, [&](int unit, int k) { return dx[unit][k] * x[unit][k]; });
  unrolled<From::kUnits, 4>([&](int unit, int k) {
    dx[unit][k] = deviation[k / 2] * (dx[unit][k] - x[unit][k] * (along[k / 2] / p.features));
  });
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
constexpr int kJoinBackBytes = kJoinBytes<N, 2 * I> + kProjectBytes<N>;

template <int I, int N>
__global__ void __launch_bounds__(kRowThreads, 1) join_back_kernel(BackArgs p) {
  using Next = FullRows<N>;
  constexpr int kBack = kJoinBytes<N, 2 * I>, kPart = Factor<N, 2 * N>::kBytes;
  char* const memory = gpu_attention::block_memory();
  BlockNumbers& numbers = block_numbers(kJoinBackBytes<I, N>);
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
        // The vectors of length 1.
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

}  // namespace mdops::gpu_attention_moments
