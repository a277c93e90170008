// Edges after messages on a GPU: a thread has some numbers side by side.
#pragma once

#include "common/gpu.h"
#include "common/rows.h"
#include "common/vector.h"
#include "edge_update/edge_update.h"

namespace mdops {

namespace gpu_edge_update {

constexpr int kThreads = 256;

// The row of a thread, and the first of its numbers there: 1 << lanes threads have a row.
template <int size>
struct Place {
  int64_t row;
  int first, step;

  __device__ explicit Place(int lanes)
      : row((static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) >> lanes),
        first((static_cast<int>(threadIdx.x) & ((1 << lanes) - 1)) * size),
        step(size << lanes) {}
};

// launch(vector size, a constant; log2 of the threads of a row; blocks), of rows so wide.
template <class T, class F>
void with_rows(int64_t rows, int64_t width, const F& launch) {
  with_vector<T>(width, [&]<int size>() {
    int lanes = 0;
    while ((1 << lanes) < kWarp && (size << lanes) < width) ++lanes;
    launch.template operator()<size>(lanes, blocks_for(rows << lanes, kThreads));
  });
}

// f of several numbers; silut is silu where none is beyond its threshold, as nearly always.
template <Activation kind, class T, int size>
__device__ __forceinline__ Vector<T, size> messages(const EdgeUpdateArgs<T>& args, const Vector<T, size>& z,
                                                    bool of_slope) {
  Vector<T, size> y, slope;
  const auto by = [&]<Activation of>() {
#pragma unroll
    for (int k = 0; k < size; ++k) activate<of>(z[k], args.threshold, &y[k], &slope[k]);
  };
  bool beyond = kind != Activation::silut;
#pragma unroll
  for (int k = 0; k < size; ++k) beyond |= z[k] >= args.threshold;
  if (beyond)
    by.template operator()<kind>();
  else
    by.template operator()<Activation::silu>();
  return of_slope ? slope : y;
}

template <class T, int size>
__device__ __forceinline__ Vector<T, size> all_none() {
  Vector<T, size> found;
#pragma unroll
  for (int k = 0; k < size; ++k) found[k] = not_a_number<T>();
  return found;
}

template <Activation kind, class T, int size>
__global__ void __launch_bounds__(kThreads) update_kernel(const EdgeUpdateArgs<T> args, int lanes) {
  using Numbers = Vector<T, size>;
  const Place<size> own(lanes);
  const int64_t edge = own.row;
  if (edge >= args.edges) return;
  const int begin = args.offsets[edge], end = args.offsets[edge + 1];
  const bool is_wrong = args.has_wrong_rows(edge);
  for (int64_t k = own.first; k < args.width; k += own.step) {
    Numbers sum = is_wrong ? all_none<T, size>() : Numbers(args.base + edge * args.width + k);
    const Numbers scale(args.scale + k);
    if (!is_wrong && end != begin + 1) {
      const Numbers nothing = messages<kind>(args, Numbers(args.bias + k), false);
#pragma unroll
      for (int c = 0; c < size; ++c) sum[c] += T(1 - (end - begin)) * scale[c] * nothing[c];
    }
    for (int row = begin; !is_wrong && row < end; ++row) {
      Numbers message = messages<kind>(args, Numbers(args.z + row * args.width + k), false);
      if (args.index[row] != edge) message = all_none<T, size>();
#pragma unroll
      for (int c = 0; c < size; ++c) sum[c] += scale[c] * message[c];
    }
    sum.store(args.out + edge * args.width + k);
  }
}

template <Activation kind, class T, int size>
__global__ void __launch_bounds__(kThreads) gradient_kernel(const EdgeUpdateArgs<T> args, int lanes) {
  using Numbers = Vector<T, size>;
  const Place<size> own(lanes);
  const int64_t row = own.row;
  if (row >= args.rows) return;
  const int64_t edge = args.index[row];
  const bool is_there = edge >= 0 && edge < args.edges;
  for (int64_t k = own.first; k < args.width; k += own.step) {
    Numbers by = edge == -1 ? Numbers() : all_none<T, size>();
    if (is_there) {
      const Numbers scale(args.scale + k), grad(args.grad + edge * args.width + k);
      by = messages<kind>(args, Numbers(args.z + row * args.width + k), true);
#pragma unroll
      for (int c = 0; c < size; ++c) by[c] *= scale[c] * grad[c];
    }
    by.store(args.out + row * args.width + k);
  }
}

template <class T>
void run_edge_update(const Gpu& gpu, const EdgeUpdateArgs<T>& args) {
  with_rows<T>(args.edges, args.width, [&]<int size>(int lanes, int64_t blocks) {
    with_activation(args.activation, [&]<Activation kind>() {
      gpu.launch(update_kernel<kind, T, size>, blocks, kThreads, 0, args, lanes);
    });
  });
}

template <class T>
void run_edge_update_gradients(const Gpu& gpu, const EdgeUpdateArgs<T>& args) {
  with_rows<T>(args.rows, args.width, [&]<int size>(int lanes, int64_t blocks) {
    with_activation(args.activation, [&]<Activation kind>() {
      gpu.launch(gradient_kernel<kind, T, size>, blocks, kThreads, 0, args, lanes);
    });
  });
}

}  // namespace gpu_edge_update

using gpu_edge_update::run_edge_update;
using gpu_edge_update::run_edge_update_gradients;

}  // namespace mdops
