// Coefficients in the frames of edges: eight lanes have an edge, and of its channels as many at once as they
// read by one vector each, so that a warp has four edges. Their matrices go through shared memory, some rows
// at a time.
#pragma once

#include <cstdint>

#include "edge_rotation/edge_rotation.h"
#include "graph/gpu_rows.h"

namespace mdops {

namespace gpu_rotation {

using gpu_graph_rows::all_of;
using gpu_graph_rows::node_row;
using gpu_graph_rows::row_at;

constexpr int kThreads = 256, kLanes = 8, kEdges = kWarp / kLanes;  // edges of a warp
constexpr int kWarps = kThreads / kWarp;
constexpr int kFillingWarps = 16;  // of a multiprocessor
constexpr int kStaged = 4096;      // bytes of matrices that a warp has in shared memory

template <class T>
constexpr int kStagedNumbers = kStaged / sizeof(T);

// What a warp works on, and which of its edges and channels a lane has.
template <class T>
struct Place {
  int64_t warp;
  int lane, edge, column;  // of its lanes, of its edges, of an edge's lanes
  T* staged;

  __device__ explicit Place(T* shared)
      : warp(static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp),
        lane(threadIdx.x % kWarp),
        edge(lane / kLanes),
        column(lane % kLanes),
        staged(shared + threadIdx.x / kWarp * kStagedNumbers<T>) {}
};

// f(first row, rows, the matrix of this lane's edge from that row on, times a weight) for rows in pieces that
// fit. All lanes call it; `matrix` is that of a lane's edge, null if there is none.
template <class T, class F>
__device__ __forceinline__ void with_rows(const Place<T>& place, const RotationShape& shape, const T* matrix,
                                          T weight, const F& f) {
  const int columns = static_cast<int>(shape.columns);
  const int rows = kStagedNumbers<T> / kEdges / columns;
  T* own = place.staged + place.edge * (kStagedNumbers<T> / kEdges);
  for (int64_t first = 0; first < shape.rows; first += rows) {
    const int count = static_cast<int>(shape.rows - first < rows ? shape.rows - first : rows);
    __syncwarp();
    if (matrix)
      for (int k = place.column; k < count * columns; k += kLanes)
        own[k] = weight * matrix[first * columns + k];
    __syncwarp();
    f(first, count, own);
  }
}

// kColumns columns from `begin` on, of an edge's node.
template <class T, int size, int kColumns, bool kWhole>
struct NodeColumns {
  Vector<T, size> numbers[kColumns];

  __device__ __forceinline__ NodeColumns(const NodeRows<T>& x, const RotationShape& shape, int64_t e,
                                         int64_t begin, int64_t c) {
    const int64_t width = shape.columns * shape.channels;
#pragma unroll
    for (int d = 0; d < kColumns; ++d)
      if (kWhole || begin + d < shape.columns)
        numbers[d] = node_row<T, size>(x, e, width, (begin + d) * shape.channels + c);
  }
};

template <class T, int size, int kColumns, bool kWhole>
__global__ void __launch_bounds__(kThreads) rotate_kernel(RotateArgs<T> args) {
  __shared__ T shared[kWarps * kStagedNumbers<T>];
  const Place<T> place(shared);
  const RotationShape shape = args.shape;
  const int64_t e = place.warp * kEdges + place.edge;
  const bool there = e < shape.edges, none = there && args.x.is_right(e) && args.x.is_none(e);
  const T* matrix = there && !none ? args.turn + e * shape.rows * shape.columns : nullptr;
  const T weight = args.weight && there ? args.weight[e] : T(1);
  with_rows(place, shape, matrix, weight, [&](int64_t first, int rows, const T* turn) {
    if (!there) return;
    for (int64_t c = place.column * size; c < shape.channels; c += kLanes * size)
      for (int64_t begin = 0; begin < shape.columns; begin += kColumns) {
        const NodeColumns<T, size, kColumns, kWhole> x(args.x, shape, e, begin, c);
        for (int r = 0; r < rows; ++r) {
          T* to = args.y + (e * shape.rows + first + r) * shape.channels + c;
          auto y = begin ? Vector<T, size>(to) : all_of<T, size>(T(0));
#pragma unroll
          for (int d = 0; d < kColumns; ++d)
            if (!none && (kWhole || begin + d < shape.columns)) {
              const T factor = turn[r * shape.columns + begin + d];
#pragma unroll
              for (int k = 0; k < size; ++k) y[k] += factor * x.numbers[d][k];
            }
          y.store(to);
        }
      }
  });
}

// A team of warps has a node, and each eight of its lanes every so many of its edges. The sums of a team's
// warps meet in shared memory, in a fixed order.
template <class T, int size, int kColumns, bool kWhole, int kTeam>
__global__ void __launch_bounds__(kThreads) sum_kernel(RotateSumArgs<T> args) {
  __shared__ T shared[kWarps * kStagedNumbers<T>];
  const Place<T> place(shared);
  const RotationShape shape = args.shape;
  const struct {
    const int32_t *index, *order;
    int64_t rows;
  } edges{args.index, args.order, shape.edges};
  const int64_t n = place.warp / kTeam;
  const int member = static_cast<int>(place.warp % kTeam);
  const bool is_node = n < shape.nodes;
  if (kTeam == 1 && !is_node) return;
  int64_t begin = is_node ? args.offsets[n] : 0, end = is_node ? args.offsets[n + 1] : 0;
  const bool fits = begin >= 0 && begin <= end && end <= shape.edges;
  if (!fits) begin = end = 0;
  // All lanes go on, also those without channels: they stage matrices, and have their part in the sums.
  for (int64_t base = 0; base < shape.channels; base += kLanes * size) {
    const int64_t c = base + place.column * size;
    const bool has = c < shape.channels;
    for (int64_t column = 0; column < shape.columns; column += kColumns) {
      Vector<T, size> sums[kColumns];
#pragma unroll
      for (int d = 0; d < kColumns; ++d) sums[d] = all_of<T, size>(fits ? T(0) : not_a_number<T>());
      for (int64_t p = begin + member * kEdges; p < end; p += kTeam * kEdges) {
        const bool there = p + place.edge < end;
        const int64_t e = there ? row_at(edges, n, p + place.edge) : -1;
        const T* matrix = e >= 0 ? args.turn + e * shape.rows * shape.columns : nullptr;
        const T weight = args.weight && e >= 0 ? args.weight[e] : T(1);
        with_rows(place, shape, matrix, weight, [&](int64_t first, int rows, const T* turn) {
          if (!there || !has) return;
          for (int r = 0; r < rows; ++r) {
            const auto y = e < 0
                               ? all_of<T, size>(not_a_number<T>())
                               : Vector<T, size>(args.y + (e * shape.rows + first + r) * shape.channels + c);
#pragma unroll
            for (int d = 0; d < kColumns; ++d)
              if (kWhole || column + d < shape.columns) {
                const T factor = e < 0 ? T(1) : turn[r * shape.columns + column + d];
#pragma unroll
                for (int k = 0; k < size; ++k) sums[d][k] += factor * y[k];
              }
          }
        });
      }
#pragma unroll
      for (int d = 0; d < kColumns; ++d)
#pragma unroll
        for (int k = 0; k < size; ++k)
#pragma unroll
          for (int step = kLanes; step < kWarp; step *= 2)
            sums[d][k] += __shfl_xor_sync(kAllLanes, sums[d][k], step);
      const auto store = [&](int d, const Vector<T, size>& sum) {
        if (has && is_node && (kWhole || column + d < shape.columns))
          sum.store(args.x + (n * shape.columns + column + d) * shape.channels + c);
      };
      if constexpr (kTeam == 1) {
#pragma unroll
        for (int d = 0; d < kColumns; ++d)
          if (place.edge == 0) store(d, sums[d]);
      } else {
        static_assert(kColumns * kLanes * size <= kStagedNumbers<T>);
        __syncwarp();
#pragma unroll
        for (int d = 0; d < kColumns; ++d)
          if (place.edge == 0) sums[d].store(place.staged + (d * kLanes + place.column) * size);
        __syncthreads();
        // Each eight lanes of the team have some of the columns.
        for (int d = member * kEdges + place.edge; d < kColumns; d += kTeam * kEdges) {
          auto sum = all_of<T, size>(T(0));
          const T* from = place.staged - member * kStagedNumbers<T> + (d * kLanes + place.column) * size;
          for (int warp = 0; warp < kTeam; ++warp, from += kStagedNumbers<T>) {
            const Vector<T, size> own(from);
#pragma unroll
            for (int k = 0; k < size; ++k) sum[k] += own[k];
          }
          store(d, sum);
        }
        __syncthreads();
      }
    }
  }
}

// The sum over an edge's lanes of kCount numbers each, a power of two up to kLanes: lane k has that of number
// k / (kLanes / kCount).
template <int kCount, class T>
__device__ __forceinline__ T sum_over_lanes(T* numbers, int column) {
  int count = kCount;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    if (count > 1) {
      count /= 2;
      const bool upper = column & step;
#pragma unroll
      for (int k = 0; k < kCount / 2; ++k)
        if (k < count) {
          const T sent = upper ? numbers[k] : numbers[k + count];
          numbers[k] = (upper ? numbers[k + count] : numbers[k]) + __shfl_xor_sync(kAllLanes, sent, step);
        }
    } else {
      numbers[0] += __shfl_xor_sync(kAllLanes, numbers[0], step);
    }
  }
  return numbers[0];
}

template <class T, int size>
__device__ __forceinline__ T dot(const Vector<T, size>& x, const Vector<T, size>& y) {
  T sum = x[0] * y[0];
#pragma unroll
  for (int k = 1; k < size; ++k) sum += x[k] * y[k];
  return sum;
}

template <class T, int size, int kColumns, bool kWhole>
__global__ void __launch_bounds__(kThreads) outer_kernel(RotateOuterArgs<T> args) {
  const RotationShape shape = args.shape;
  const int64_t e = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes;
  const bool there = e < shape.edges, none = there && args.x.is_right(e) && args.x.is_none(e);
  constexpr int kGroups = kColumns / kLanes;
  const T weight = args.weight && there ? args.weight[e] : T(1);
  T by_weight = 0;
  for (int64_t base = 0; base < shape.channels; base += kLanes * size) {
    const int64_t c = base + lane * size;
    const bool has = there && !none && c < shape.channels;
    for (int64_t begin = 0; begin < shape.columns; begin += kColumns) {
      Vector<T, size> x[kColumns];
      if (has) {
        const NodeColumns<T, size, kColumns, kWhole> own(args.x, shape, e, begin, c);
#pragma unroll
        for (int d = 0; d < kColumns; ++d) x[d] = own.numbers[d];
      }
      for (int64_t r = 0; r < shape.rows; ++r) {
        const auto y =
            has ? Vector<T, size>(args.y + (e * shape.rows + r) * shape.channels + c) : all_of<T, size>(T(0));
        T* const to = args.turn + (e * shape.rows + r) * shape.columns + begin;
        const auto write = [&](int d, T value) {
          if (!there || (!kWhole && begin + d >= shape.columns)) return;
          to[d] = base ? to[d] + weight * value : weight * value;
          if (args.by_weight) by_weight += value * args.of_weight[to + d - args.turn];
        };
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          T numbers[kLanes];
#pragma unroll
          for (int d = 0; d < kLanes; ++d) numbers[d] = dot(x[group * kLanes + d], y);
          write(group * kLanes + lane, sum_over_lanes<kLanes>(numbers, lane));
        }
#pragma unroll
        for (int d = kGroups * kLanes; d < kColumns; ++d) {
          T number = dot(x[d], y);
          const T sum = sum_over_lanes<1>(&number, lane);
          if (lane == d % kLanes) write(d, sum);
        }
      }
    }
  }
  if (args.by_weight) {
    by_weight = sum_over_lanes<1>(&by_weight, lane);
    if (there && lane == 0) args.by_weight[e] = none ? T(0) : by_weight;
  }
}

// launch(vector size, columns at once, whether these are all).
template <class T, class F>
void with_sizes(const RotationShape& shape, const F& launch) {
  with_vector<T>(shape.channels, [&]<int size>() {
    if (shape.columns == 4)
      launch.template operator()<size, 4, true>();
    else if (shape.columns == 9)
      launch.template operator()<size, 9, true>();
    else if (shape.columns == 16)
      launch.template operator()<size, 16, true>();
    else
      launch.template operator()<size, 8, false>();
  });
}

template <class T>
void run_rotate(const Gpu& gpu, const RotateArgs<T>& args) {
  with_sizes<T>(args.shape, [&]<int size, int kColumns, bool kWhole>() {
    gpu.launch(rotate_kernel<T, size, kColumns, kWhole>, blocks_for(args.shape.edges, kEdges * kWarps),
               kThreads, 0, args);
  });
}

template <class T>
void run_sum(const Gpu& gpu, const RotateSumArgs<T>& args) {
  with_sizes<T>(args.shape, [&]<int size, int kColumns, bool kWhole>() {
    const auto launch = [&]<int kTeam>() {
      gpu.launch(sum_kernel<T, size, kColumns, kWhole, kTeam>, blocks_for(args.shape.nodes, kWarps / kTeam),
                 kThreads, 0, args);
    };
    // Few nodes have several warps each.
    if (args.shape.nodes >= kFillingWarps * gpu.limits().multiprocessors)
      launch.template operator()<1>();
    else if (2 * args.shape.nodes >= kFillingWarps * gpu.limits().multiprocessors)
      launch.template operator()<2>();
    else
      launch.template operator()<8>();
  });
}

template <class T>
void run_outer(const Gpu& gpu, const RotateOuterArgs<T>& args) {
  with_sizes<T>(args.shape, [&]<int size, int kColumns, bool kWhole>() {
    gpu.launch(outer_kernel<T, size, kColumns, kWhole>, blocks_for(args.shape.edges, kEdges * kWarps),
               kThreads, 0, args);
  });
}

}  // namespace gpu_rotation

}  // namespace mdops
