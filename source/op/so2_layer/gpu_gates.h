// The gates of layers of any width and number type, after their products (gpu_products.h). A warp has an
// edge; a lane has the numbers of m = 0, -1 and 1 of one degree and channel.
#pragma once

#include "common/activation.h"
#include "common/gpu.h"
#include "common/gpu_divide.h"
#include "common/gpu_warp.h"
#include "so2_layer/so2_layer.h"

namespace mdops::gpu_so2 {

constexpr int kGateThreads = 256;

template <class T>
MDOPS_D T sigmoid(T x) {
  if constexpr (sizeof(T) == sizeof(float))
    return quotient(1.0f, 1.0f + expf(-x));  // beyond its range it is zero, as it should be
  else
    return T(1) / (T(1) + exp(-x));
}

// Calls f(edge, k, index of m = 0, of m = -1, of m = 1, whether the last two exist: not for scalars).
template <class T, class F>
MDOPS_D void each_number(const So2Args<T>& args, const F& f) {
  const int64_t e = (static_cast<int64_t>(blockIdx.x) * kGateThreads + threadIdx.x) / kWarp;
  if (e >= args.edges) return;
  const int64_t begin = e * args.row(), middle = args.middle(), side = args.side();
#pragma unroll 2
  for (int64_t k = threadIdx.x % kWarp; k < middle; k += kWarp) {
    const int64_t at = begin + middle + k - args.channels;
    f(e, k, begin + k, at, at + side, k >= args.channels);
  }
}

// Forward: y holds z; the gates' logits (E, L C) are given.
template <class T>
__global__ void __launch_bounds__(kGateThreads)
    gate_kernel(const __grid_constant__ So2Args<T> args, const T* __restrict__ logits) {
  const T* __restrict__ const x = args.x;
  T* __restrict__ const y = args.y;
  each_number(args, [&](int64_t e, int64_t k, int64_t at, int64_t n, int64_t p, bool gated) {
    const T f = sigmoid(gated ? logits[e * args.side() + k - args.channels] : y[at]);
    y[at] = x[at] + f * y[at];
    if (!gated) return;
    y[n] = x[n] + f * y[n];
    y[p] = x[p] + f * y[p];
  });
}

// Backward: dz without the part through the gates' weights, from the scalars (E, C) and the logits. The
// slopes a_l replace the logits.
template <class T>
__global__ void __launch_bounds__(kGateThreads)
    gate_backward_kernel(const __grid_constant__ So2Args<T> args, const T* __restrict__ scalars,
                         T* __restrict__ logits, T* __restrict__ by_z) {
  const T* __restrict__ const x = args.x, * __restrict__ const y = args.result, * __restrict__ const g = args.grad;
  each_number(args, [&](int64_t e, int64_t k, int64_t at, int64_t n, int64_t p, bool gated) {
    const int64_t logit = e * args.side() + k - args.channels;
    const T f = sigmoid(gated ? logits[logit] : scalars[e * args.channels + k]), by = g[at];
    T slope = by * (y[at] - x[at]);
    if (!gated) {
      by_z[at] = f * by + (T(1) - f) * slope;
      return;
    }
    const T by_n = g[n], by_p = g[p];
    slope += by_n * (y[n] - x[n]) + by_p * (y[p] - x[p]);
    by_z[at] = f * by, by_z[n] = f * by_n, by_z[p] = f * by_p;
    logits[logit] = (T(1) - f) * slope;
  });
}

// The part of the scalars' dz through the gates' weights.
template <class T>
__global__ void __launch_bounds__(kGateThreads)
    add_scalars_kernel(const __grid_constant__ So2Args<T> args, const T* __restrict__ more,
                       T* __restrict__ by_z) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kGateThreads + threadIdx.x;
  if (k >= args.edges * args.channels) return;
  const auto [e, c] = divided(k, args.channels);
  by_z[e * args.row() + c] += more[k];
}

// [[U, V], [-V, U]], the matrix for rows of m = -1 and 1 side by side.
template <class T>
__global__ void __launch_bounds__(kGateThreads)
    pack_signs_kernel(int64_t side, const T* __restrict__ both, T* __restrict__ packed) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kGateThreads + threadIdx.x, columns = 2 * side;
  if (k >= columns * columns) return;
  const auto [row, column] = divided(k, columns);
  if (row < side)
    packed[k] = both[k];
  else if (column < side)
    packed[k] = -both[(row - side) * columns + column + side];
  else
    packed[k] = both[(row - side) * columns + column - side];
}

}  // namespace mdops::gpu_so2
