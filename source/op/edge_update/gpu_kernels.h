// Edges after messages on a GPU: a thread has some adjacent numbers.
#pragma once

#include "common/gpu.h"
#include "common/rows.h"
#include "common/vector.h"
#include "edge_update/edge_update.h"

namespace mdops::gpu_edge_update {

constexpr int kThreads = 256;

// f of several numbers; silut is silu if none exceeds its threshold, as usual.
template <Activation kind, class T, int size>
MDOPS_D Vector<T, size> messages(const EdgeUpdateArgs<T>& args, const Vector<T, size>& z, bool of_slope) {
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
MDOPS_D Vector<T, size> all_none() {
  Vector<T, size> found;
#pragma unroll
  for (int k = 0; k < size; ++k) found[k] = not_a_number<T>();
  return found;
}

// Numbers of an edge after its messages.
template <Activation kind, class T, int size>
struct Updated {
  using Numbers = Vector<T, size>;

  const EdgeUpdateArgs<T>& args;
  const int64_t edge;
  const int begin, end;
  const bool is_wrong;

  __device__ Updated(const EdgeUpdateArgs<T>& args_, int64_t edge_)
      : args(args_),
        edge(edge_),
        begin(args.offsets[edge]),
        end(args.offsets[edge + 1]),
        is_wrong(args.has_wrong_rows(edge)) {}

  MDOPS_D Numbers at(int64_t k) const {
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
    return sum;
  }
};

// Gradients by numbers of a message's row.
template <Activation kind, class T, int size>
struct ByMessage {
  using Numbers = Vector<T, size>;

  const EdgeUpdateArgs<T>& args;
  const int64_t row, edge;

  __device__ ByMessage(const EdgeUpdateArgs<T>& args_, int64_t row_)
      : args(args_), row(row_), edge(args.index[row]) {}

  MDOPS_D Numbers at(int64_t k) const {
    if (edge < 0 || edge >= args.edges) return edge == -1 ? Numbers() : all_none<T, size>();
    const Numbers scale(args.scale + k), grad(args.grad + edge * args.width + k);
    Numbers by = messages<kind>(args, Numbers(args.z + row * args.width + k), true);
#pragma unroll
    for (int c = 0; c < size; ++c) by[c] *= scale[c] * grad[c];
    return by;
  }
};

// 1 << lanes threads share a row.
template <template <Activation, class, int> class Row, Activation kind, class T, int size>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const EdgeUpdateArgs<T> args, int64_t rows, int lanes) {
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) >> lanes;
  if (row >= rows) return;
  const Row<kind, T, size> own(args, row);
  const int first = (static_cast<int>(threadIdx.x) & ((1 << lanes) - 1)) * size;
  for (int64_t k = first; k < args.width; k += size << lanes)
    own.at(k).store(args.out + row * args.width + k);
}

template <template <Activation, class, int> class Row, class T>
void launch_rows(const Gpu& gpu, int64_t rows, const EdgeUpdateArgs<T>& args) {
  with_vector<T>(args.width, [&]<int size>() {
    int lanes = 0;
    while ((1 << lanes) < kWarp && (size << lanes) < args.width) ++lanes;
    with_activation(args.activation, [&]<Activation kind>() {
      gpu.launch(rows_kernel<Row, kind, T, size>, blocks_for(rows << lanes, kThreads), kThreads, 0, args,
                 rows, lanes);
    });
  });
}

template <class T>
void run_edge_update(const Gpu& gpu, const EdgeUpdateArgs<T>& args) {
  launch_rows<Updated>(gpu, args.edges, args);
}

template <class T>
void run_edge_update_gradients(const Gpu& gpu, const EdgeUpdateArgs<T>& args) {
  launch_rows<ByMessage>(gpu, args.rows, args);
}

}  // namespace mdops::gpu_edge_update

namespace mdops {
using gpu_edge_update::run_edge_update, gpu_edge_update::run_edge_update_gradients;
}  // namespace mdops
