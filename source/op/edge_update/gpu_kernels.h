// Edges after messages on a GPU: a thread has some adjacent numbers.
#pragma once

#include "common/gpu.h"
#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "common/vector.h"
#include "edge_update/edge_update.h"

namespace mdops::gpu_edge_update {

// f of several numbers; silut is silu if none exceeds its threshold, as usual.
template <Activation kind, class T, int size>
MDOPS_D Vector<T, size> messages(const EdgeUpdateArgs<T>& args, const Vector<T, size>& z, bool of_slope) {
  Vector<T, size> y, slope;
  const auto by = [&]<Activation of>() {
    unrolled<size>([&](int k) { activate<of>(z[k], args.threshold, &y[k], &slope[k]); });
  };
  bool beyond = kind != Activation::silut;
  unrolled<size>([&](int k) { beyond |= z[k] >= args.threshold; });
  if (beyond)
    by.template operator()<kind>();
  else
    by.template operator()<Activation::silu>();
  return of_slope ? slope : y;
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
    Numbers sum = is_wrong ? Numbers::all(not_a_number<T>()) : Numbers(args.base + edge * args.width + k);
    const Numbers scale(args.scale + k);
    if (!is_wrong && end != begin + 1) {
      const Numbers nothing = messages<kind>(args, Numbers(args.bias + k), false);
      unrolled<size>([&](int c) { sum[c] += T(1 - (end - begin)) * scale[c] * nothing[c]; });
    }
    for (int row = begin; !is_wrong && row < end; ++row) {
      Numbers message = messages<kind>(args, Numbers(args.z + row * args.width + k), false);
      if (args.index[row] != edge) message = Numbers::all(not_a_number<T>());
      unrolled<size>([&](int c) { sum[c] += scale[c] * message[c]; });
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
    if (edge < 0 || edge >= args.edges) return edge == -1 ? Numbers() : Numbers::all(not_a_number<T>());
    const Numbers scale(args.scale + k), grad(args.grad + edge * args.width + k);
    Numbers by = messages<kind>(args, Numbers(args.z + row * args.width + k), true);
    unrolled<size>([&](int c) { by[c] *= scale[c] * grad[c]; });
    return by;
  }
};

template <template <Activation, class, int> class Row, Activation kind, class T, int size>
__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(const EdgeUpdateArgs<T> args, int64_t rows, int lanes) {
  const RowOfLanes place(lanes);
  if (place.row >= rows) return;
  const Row<kind, T, size> own(args, place.row);
  for (int64_t k = place.first * size; k < args.width; k += size << lanes)
    own.at(k).store(args.out + place.row * args.width + k);
}

template <template <Activation, class, int> class Row, class T>
void launch_rows(const Gpu& gpu, int64_t rows, const EdgeUpdateArgs<T>& args) {
  with_row_lanes<T>(args.width, 0, [&]<int size>(int lanes) {
    with_activation(args.activation, [&]<Activation kind>() {
      gpu.launch_for(rows << lanes, kRowThreads, rows_kernel<Row, kind, T, size>, args, rows, lanes);
    });
  });
}

template <class T>
void run_edge_update(const Gpu& gpu, const EdgeUpdateArgs<T>& args) {
  args.grad ? launch_rows<ByMessage>(gpu, args.rows, args) : launch_rows<Updated>(gpu, args.edges, args);
}

}  // namespace mdops::gpu_edge_update

namespace mdops {
using gpu_edge_update::run_edge_update;
}  // namespace mdops
