// Mixed degrees on a GPU: a thread a column of an edge's rows, or one of its numbers. For |m| <= 1 and
// matrices of whole rotations of degree 2 and 3, sizes are known at compile time, and a thread loads all its
// inputs at once.
#pragma once

#include "common/gpu.h"
#include "common/gpu_divide.h"
#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "common/vector.h"
#include "order_mix/order_mix.h"

namespace mdops::gpu_order_mix {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) mix_kernel(const OrderMixArgs<T> args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= args.shape.edges * args.shape.columns) return;
  const auto [edge, column] = divided(k, args.shape.columns);
  mix_column(args, edge, column);
}

template <class T>
__global__ void __launch_bounds__(kThreads) outer_kernel(const OrderOuterArgs<T> args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, numbers = args.shape.numbers();
  if (k >= args.shape.edges * numbers) return;
  const auto [edge, number] = divided(k, numbers);
  outer_number(args, edge, number);
}

// Degrees up to L.
template <int L>
struct KnownOrders {
  static constexpr int kColumns = (L + 1) * (L + 1), kRows = 3 * L + 1, kFirst = (L + 1) * (L + 1);
  static constexpr int kNumbers = kFirst + L * L;
};

// One block's rows, of a column; transposed or not.
template <int kSize, bool kTransposed, class T>
MDOPS_D void mix_block(const T* numbers, const T* x, T* y) {
  unrolled<kSize>([&](int o) {
    y[o] = 0;
    unrolled<kSize>([&](int k) { y[o] += numbers[kTransposed ? o * kSize + k : k * kSize + o] * x[k]; });
  });
}

template <int L, bool kTransposed, class T>
__global__ void __launch_bounds__(kThreads) known_mix_kernel(const OrderMixArgs<T> args) {
  using Own = KnownOrders<L>;
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, e = k / Own::kColumns;
  if (e >= args.shape.edges) return;
  const int64_t at = e * Own::kRows * Own::kColumns + k % Own::kColumns;
  T x[Own::kRows], y[Own::kRows], numbers[Own::kNumbers];
  unrolled<Own::kRows>([&](int r) { x[r] = __ldg(args.x + at + r * Own::kColumns); });
  unrolled<Own::kNumbers>([&](int q) { numbers[q] = __ldg(args.numbers + e * Own::kNumbers + q); });
  mix_block<L + 1, kTransposed>(numbers, x, y);
#pragma unroll
  for (int begin = L + 1; begin < Own::kRows; begin += L)
    mix_block<L, kTransposed>(numbers + Own::kFirst, x + begin, y + begin);
  unrolled<Own::kRows>([&](int r) {
    const int64_t place = at + r * Own::kColumns;
    args.y[place] = args.base ? args.base[place] + y[r] : y[r];
  });
}

template <int L, class T>
__global__ void __launch_bounds__(kThreads) known_outer_kernel(const OrderOuterArgs<T> args) {
  using Own = KnownOrders<L>;
  constexpr int kColumns = Own::kColumns, kAtOnce = kColumns % kVectorSize<T> == 0 ? kVectorSize<T> : 1;
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, e = k / Own::kNumbers;
  if (e >= args.shape.edges) return;
  const int q = static_cast<int>(k % Own::kNumbers), left = q - Own::kFirst;
  const bool first = left < 0;
  const int64_t row = e * Own::kRows + (first ? 0 : L + 1);
  const int of_x = first ? q / (L + 1) : left / L, of_y = first ? q % (L + 1) : left % L;
  T sum = 0;
  for (int sign = 0; sign < (first ? 1 : 2); ++sign) {
    const T* const x = args.x + (row + sign * L + of_x) * kColumns;
    const T* const y = args.y + (row + sign * L + of_y) * kColumns;
    Vector<T, kAtOnce> a[kColumns / kAtOnce], b[kColumns / kAtOnce];
#pragma unroll
    for (int d = 0; d < kColumns / kAtOnce; ++d)
      a[d] = Vector<T, kAtOnce>(x + d * kAtOnce), b[d] = Vector<T, kAtOnce>(y + d * kAtOnce);
    unrolled<kColumns / kAtOnce, kAtOnce>([&](int d, int i) { sum += a[d][i] * b[d][i]; });
  }
  args.numbers[k] = sum;
}

// f<L>() of the degree, if there is one.
bool with_known_orders(const OrderShape& shape, const auto& f) {
  return shape.order == 1 && shape.columns == (shape.degree + 1) * (shape.degree + 1) &&
         with_one_of<2, 3>(shape.degree, f);
}

template <class T>
void run_orders(const Gpu& gpu, const OrderMixArgs<T>& args) {
  const bool known = with_known_orders(args.shape, [&]<int L>() {
    const int64_t blocks = blocks_for(args.shape.edges * args.shape.columns, kThreads);
    args.transposed ? gpu.launch(known_mix_kernel<L, true, T>, blocks, kThreads, 0, args)
                    : gpu.launch(known_mix_kernel<L, false, T>, blocks, kThreads, 0, args);
  });
  if (known) return;
  gpu.launch(mix_kernel<T>, blocks_for(args.shape.edges * args.shape.columns, kThreads), kThreads, 0, args);
}

template <class T>
void run_orders(const Gpu& gpu, const OrderOuterArgs<T>& args) {
  const bool known = with_known_orders(args.shape, [&]<int L>() {
    gpu.launch(known_outer_kernel<L, T>, blocks_for(args.shape.edges * args.shape.numbers(), kThreads),
               kThreads, 0, args);
  });
  if (known) return;
  gpu.launch(outer_kernel<T>, blocks_for(args.shape.edges * args.shape.numbers(), kThreads), kThreads, 0,
             args);
}

}  // namespace mdops::gpu_order_mix

namespace mdops {
using gpu_order_mix::run_orders;
}  // namespace mdops
