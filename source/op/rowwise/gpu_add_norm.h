// The kernels on LayerNorm of a sum: a warp a row, and sums over rows by each warp for itself, then by block,
// then over the blocks, always in the same order.
#pragma once

#include "common/gpu.h"
#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "common/vector.h"
#include "gemm/gpu_memory.h"
#include "rowwise/add_norm.h"

namespace mdops::gpu_add_norm {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kWidestNorm = 512;

// f(number's place, column) for the columns of this lane.
template <int N, class F>
MDOPS_D void each_column(int64_t width, const F& f) {
  unrolled<N>([&](int i) {
    const int64_t column = lane_index() + i * kWarp;
    if (column < width) f(i, column);
  });
}

// Rows up to 32 N wide. Shared memory has each warp's sums.
template <class T, int N>
__global__ void __launch_bounds__(kThreads) add_norm_kernel(AddNormArgs<T> p) {
  T* const all_sums = reinterpret_cast<T*>(net_memory());
  const int warp = threadIdx.x / kWarp;
  const int64_t size = p.sums * p.width;
  T* const sums = all_sums + warp * size;
  for (int64_t k = lane_index(); k < size; k += kWarp) sums[k] = 0;
  __syncwarp();
  const T by_width = T(1) / static_cast<T>(p.width);
  const auto mean_of = [&](auto&& number) {
    T sum = 0;
    each_column<N>(p.width, [&](int i, int64_t column) { sum += number(i, column); });
    return warp_sum(sum) * by_width;
  };
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + warp; row < p.rows;
       row += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t at = row * p.width;
    T n[N], g[N];
    NormRow<T> norm{};
    each_column<N>(p.width, [&](int i, int64_t k) { n[i] = p.y ? p.x[at + k] + p.y[at + k] : p.x[at + k]; });
    if (p.grad) each_column<N>(p.width, [&](int i, int64_t k) { g[i] = p.grad[at + k]; });
    norm.mean = mean_of([&](int i, int64_t) { return n[i]; });
    norm.r = T(1) / sqrt(mean_of([&](int i, int64_t) {
                           const T from = n[i] - norm.mean;
                           return from * from;
                         }) +
                         p.eps);
    each_column<N>(p.width, [&](int i, int64_t) { n[i] = norm.n(n[i]); });
    if (!p.grad) {
      each_column<N>(p.width, [&](int i, int64_t k) { p.out[at + k] = p.weight[k] * n[i] + p.bias[k]; });
      continue;
    }
    const auto a = [&](int i, int64_t k) { return p.weight[k] * g[i]; };
    norm.a.z = mean_of(a), norm.a.n_z = mean_of([&](int i, int64_t k) { return n[i] * a(i, k); });
    if (!p.direction) {
      each_column<N>(p.width, [&](int i, int64_t k) {
        p.out[at + k] = norm.by_h(a(i, k), n[i]);
        sums[k] += n[i] * g[i], sums[p.width + k] += g[i];
      });
      continue;
    }
    T along[N];
    each_column<N>(p.width, [&](int i, int64_t k) { along[i] = p.direction[at + k]; });
    const auto z = [&](int i, int64_t k) { return p.along_weight[k] * g[i]; };
    norm.p.z = mean_of([&](int i, int64_t) { return along[i]; });
    norm.p.n_z = mean_of([&](int i, int64_t) { return n[i] * along[i]; });
    norm.p_a = mean_of([&](int i, int64_t k) { return along[i] * a(i, k); });
    norm.z.z = mean_of(z), norm.z.n_z = mean_of([&](int i, int64_t k) { return n[i] * z(i, k); });
    each_column<N>(p.width, [&](int i, int64_t k) {
      const T j = norm.along(along[i], n[i]);
      p.by_grad[at + k] = norm.by_grad(j, n[i], p.weight[k], p.along_weight[k], p.along_bias[k]);
      p.out[at + k] = norm.second_by_h(along[i], a(i, k), z(i, k), n[i]);
      sums[k] += g[i] * j;
    });
  }
  if (!p.sums) return;
  __syncthreads();
  for (int64_t k = threadIdx.x; k < size; k += kThreads) {
    T sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += all_sums[w * size + k];
    p.partial[blockIdx.x * size + k] = sum;
  }
}

constexpr int kNarrow = 32, kNarrowLanes = kNarrow / 4;  // columns, four a lane

// Four adjacent numbers; `placed` if they are 16-byte aligned.
template <bool placed>
MDOPS_D Vector<float, 4> four_at(const float* from) {
  if constexpr (placed) return Vector<float, 4>(from);
  Vector<float, 4> found;
  unrolled<4>([&](int k) { found[k] = from[k]; });
  return found;
}

// Rows of 32 columns, four of them a warp, forward or backward.
template <bool kBack, bool placed>
__global__ void __launch_bounds__(kThreads) narrow_norm_kernel(AddNormArgs<float> p) {
  using Four = Vector<float, 4>;
  constexpr int kOfWarp = kWarp / kNarrowLanes;
  alignas(16) __shared__ float all_sums[kWarps][2 * kNarrow];
  const int warp = threadIdx.x / kWarp, lane = lane_index() % kNarrowLanes, own = lane_index() / kNarrowLanes;
  const Four weight = four_at<placed>(p.weight + 4 * lane);
  Four bias, by_weight, by_bias;
  if constexpr (!kBack) bias = four_at<placed>(p.bias + 4 * lane);
  const auto mean_of = [](const Four& x) {
    return warp_sum<kNarrowLanes>(x[0] + x[1] + x[2] + x[3]) * (1.0f / kNarrow);
  };
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps * kOfWarp;
  // All lanes of a warp take part in the sums.
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * kWarps + warp) * kOfWarp; first < p.rows;
       first += step) {
    const bool there = first + own < p.rows;
    const int64_t at = (first + own) * kNarrow + 4 * lane;
    Four n, g, square, a, n_a;
    if (there) n = four_at<placed>(p.x + at);
    if (there && p.y) {
      const Four y = four_at<placed>(p.y + at);
      unrolled<4>([&](int k) { n[k] += y[k]; });
    }
    if (kBack && there) g = four_at<placed>(p.grad + at);
    NormRow<float> norm{};
    norm.mean = mean_of(n);
    unrolled<4>([&](int k) { square[k] = (n[k] - norm.mean) * (n[k] - norm.mean); });
    norm.r = 1.0f / sqrtf(mean_of(square) + p.eps);
    unrolled<4>([&](int k) { n[k] = norm.n(n[k]), a[k] = weight[k] * g[k], n_a[k] = n[k] * a[k]; });
    Four out;
    if constexpr (kBack) {
      norm.a.z = mean_of(a), norm.a.n_z = mean_of(n_a);
      unrolled<4>([&](int k) {
        out[k] = norm.by_h(a[k], n[k]);
        by_weight[k] += n[k] * g[k], by_bias[k] += g[k];
      });
    } else {
      unrolled<4>([&](int k) { out[k] = weight[k] * n[k] + bias[k]; });
    }
    if (there) out.store(p.out + at);
  }
  if constexpr (!kBack) return;
#pragma unroll
  for (int k = 0; k < 4; ++k)
    for (int lanes = kNarrowLanes; lanes < kWarp; lanes *= 2) {
      by_weight[k] += __shfl_xor_sync(kAllLanes, by_weight[k], lanes);
      by_bias[k] += __shfl_xor_sync(kAllLanes, by_bias[k], lanes);
    }
  if (own == 0) {
    by_weight.store(&all_sums[warp][4 * lane]);
    by_bias.store(&all_sums[warp][kNarrow + 4 * lane]);
  }
  __syncthreads();
  for (int k = threadIdx.x; k < 2 * kNarrow; k += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += all_sums[w][k];
    p.partial[blockIdx.x * 2 * kNarrow + k] = sum;
  }
}

// Launches that kernel; false if it does not support the rows or the pass.
inline bool run_narrow_norm(const Gpu& gpu, int64_t blocks, const AddNormArgs<float>& p) {
  if (p.width != kNarrow || p.sums == 1) return false;
  bool placed = true;
  for (const float* from : {p.x, p.y, p.weight, p.bias, p.grad})
    placed &= reinterpret_cast<uintptr_t>(from) % sizeof(Vector<float, 4>) == 0;
  const auto forward = placed ? narrow_norm_kernel<false, true> : narrow_norm_kernel<false, false>;
  const auto back = placed ? narrow_norm_kernel<true, true> : narrow_norm_kernel<true, false>;
  gpu.launch(p.sums ? back : forward, blocks, kThreads, 0, p);
  return true;
}

// Sums of so many columns over `runs`, the first `width` to one place, the others to the second: a warp each.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_runs_kernel(const T* partial, int64_t runs, int64_t columns, int64_t width, T* first, T* second) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (column >= columns) return;
  T sum = 0;
  for (int64_t run = lane_index(); run < runs; run += kWarp) sum += partial[run * columns + column];
  sum = warp_sum(sum);
  if (lane_index() == 0) (column < width ? first[column] : second[column - width]) = sum;
}

}  // namespace mdops::gpu_add_norm
