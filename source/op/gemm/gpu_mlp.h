// The steps between products of a net's passes on a GPU (mlp.h has the formulas): a thread per number.
#pragma once

#include "common/activation.h"
#include "common/gpu.h"

namespace mdops {

constexpr int kMlpThreads = 256;

// One layer of some rows. Unneeded arrays are null.
template <class T>
struct MlpLayerArgs {
  int64_t numbers;  // rows times columns
  int columns, inputs;
  bool adds_input;
  Activation activation;
  T threshold;
  const T *bias, *timestep;  // null: 0 and 1
  // For several nets with tiles of rows each: the net of each tile; the nets' biases and timesteps follow
  // each other. Null: one net.
  const int32_t* tile_net = nullptr;
  int tile_rows = 1;

  MDOPS_D int64_t vector(int64_t row) const {
    return tile_net ? static_cast<int64_t>(max(0, tile_net[quotient_of(row, tile_rows)])) * columns : 0;
  }

  // In 32 bits if possible, which is much faster on a GPU.
  static MDOPS_D int64_t quotient_of(int64_t a, int b) {
    const uint64_t whole = static_cast<uint64_t>(a);
    return whole >> 32 ? a / b : static_cast<uint32_t>(whole) / static_cast<uint32_t>(b);
  }
};

// z, a product, becomes the layer's output, for input x.
template <class T>
struct MlpValues {
  T *z, *slope, *curve, *f, *df;  // t f' and t f'', and f and f' themselves
  const T* x;
};

template <class T>
MDOPS_D T mlp_added(const MlpLayerArgs<T>& p, const T* x, int64_t row, int column) {
  return p.adds_input ? x[row * p.inputs + column % p.inputs] : T(0);
}

template <class T, Activation kind>
__global__ void __launch_bounds__(kMlpThreads) mlp_value_kernel(MlpLayerArgs<T> p, MlpValues<T> v) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kMlpThreads + threadIdx.x;
  if (at >= p.numbers) return;
  const int64_t row = p.quotient_of(at, p.columns);
  const int column = static_cast<int>(at - row * p.columns);
  const int64_t own = p.vector(row) + column;
  const T timestep = p.timestep ? p.timestep[own] : T(1);
  T f, df, ddf = 0;
  const T z = v.z[at] + (p.bias ? p.bias[own] : T(0));
  if (v.curve)
    activate_twice<kind>(z, p.threshold, &f, &df, &ddf);
  else
    activate<kind>(z, p.threshold, &f, &df);
  v.z[at] = f * timestep + mlp_added(p, v.x, row, column);
  if (v.slope) v.slope[at] = df * timestep;
  if (v.curve) v.curve[at] = ddf * timestep;
  if (v.f) v.f[at] = f;
  if (v.df) v.df[at] = df;
}

// dz becomes dy, for a tangent dx of the input; dz itself is kept if the caller wants it.
template <class T>
__global__ void __launch_bounds__(kMlpThreads)
    mlp_tangent_kernel(MlpLayerArgs<T> p, const T* dz, const T* slope, const T* dx, T* dy) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kMlpThreads + threadIdx.x;
  if (at >= p.numbers) return;
  const int64_t row = p.quotient_of(at, p.columns);
  dy[at] = slope[at] * dz[at] + mlp_added(p, dx, row, static_cast<int>(at - row * p.columns));
}

// The gradients by y and dy become those by z and dz.
template <class T>
struct MlpDeltas {
  const T *grad, *grad_dy;  // the second null for a value only
  const T *slope, *curve, *dz, *f, *df;
  T *delta, *delta_dz, *steps;  // steps: each row's part of the timesteps' gradient, or null
};

template <class T>
__global__ void __launch_bounds__(kMlpThreads) mlp_delta_kernel(MlpLayerArgs<T> p, MlpDeltas<T> v) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kMlpThreads + threadIdx.x;
  if (at >= p.numbers) return;
  const T grad = v.grad[at], slope = v.slope[at];
  T delta = slope * grad, steps = v.steps ? v.f[at] * grad : T(0);
  if (v.grad_dy) {
    const T along = v.dz[at] * v.grad_dy[at];
    delta += v.curve[at] * along;
    if (v.steps) steps += v.df[at] * along;
    v.delta_dz[at] = slope * v.grad_dy[at];
  }
  v.delta[at] = delta;
  if (v.steps) v.steps[at] = steps;
}

template <class T>
__global__ void __launch_bounds__(kMlpThreads) mlp_sum_kernel(int64_t count, const T* from, T* to) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kMlpThreads + threadIdx.x;
  if (at < count) to[at] += from[at];
}

// Adds the residual's part to the gradient of a layer's input (numbers: rows times inputs).
template <class T>
__global__ void __launch_bounds__(kMlpThreads)
    mlp_around_kernel(MlpLayerArgs<T> p, int64_t numbers, const T* grad, T* to) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kMlpThreads + threadIdx.x;
  if (at >= numbers) return;
  const int64_t row = p.quotient_of(at, p.inputs), column = at - row * p.inputs;
  T sum = to[at];
  for (int64_t c = column; c < p.columns; c += p.inputs) sum += grad[row * p.columns + c];
  to[at] = sum;
}

}  // namespace mdops
