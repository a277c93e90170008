// Coefficients in the frames of edges. Eight or sixteen lanes have an edge, so that a warp has four edges or
// two. At once they have as many channels as they read by one vector each. Matrices go through shared memory,
// some rows at a time. For frames with |m| <= 1 and degree 2 to 4 the sizes are constants, and rows are
// loaded ahead.
#pragma once

#include "common/gpu_lane_sums.h"
#include "edge_rotation/edge_rotation.h"
#include "graph/gpu_rows.h"

namespace mdops::gpu_rotation {

using gpu_graph_rows::node_row, gpu_graph_rows::row_at;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// The compile-time sizes: lanes of an edge, rows (0: any number), columns at once, and whether these are all.
template <int Lanes, int Rows, int Columns, bool Whole>
struct Known {
  static constexpr int kLanes = Lanes, kEdges = kWarp / Lanes;  // edges of a warp
  static constexpr int kRows = Rows, kColumns = Columns;
  static constexpr bool kWhole = Whole;
  static constexpr int kBlocks = Columns > 16 ? 1 : 2;        // per multiprocessor
  static constexpr int kStaged = Columns > 16 ? 5632 : 4096;  // bytes of a warp's matrices in shared memory
  // Rows loaded at once; the same for sums.
  static constexpr int kAtOnce = Rows == 0 ? 1 : Columns > 9 ? 2 - Rows % 2 : Rows;
  static constexpr int kOfSums = Rows == 0 ? 4 : Columns > 9 ? 5 : Rows;
};

template <class T, class K>
constexpr int kStagedNumbers = K::kStaged / sizeof(T);

// A warp's index and memory, and which of its edges and channels a lane has.
template <class T, class K>
struct Place {
  int64_t warp;
  int lane, edge, column;  // in the warp, in its edges, in an edge's lanes
  T* staged;

  __device__ explicit Place(T* shared)
      : warp(static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp),
        lane(threadIdx.x % kWarp),
        edge(lane / K::kLanes),
        column(lane % K::kLanes),
        staged(shared + threadIdx.x / kWarp * kStagedNumbers<T, K>) {}
};

// Calls f(first row, rows, matrix of the lane's edge from that row on, times the weight) for pieces of rows
// that fit. All lanes call it; `matrix` is that of the lane's edge, or null.
template <class T, class K, class F>
MDOPS_D void with_rows(const Place<T, K>& place, const RotationShape& shape, const T* matrix, T weight,
                       const F& f) {
  T* own = place.staged + place.edge * (kStagedNumbers<T, K> / K::kEdges);
  if constexpr (K::kRows > 0) {
    constexpr int kNumbers = K::kRows * K::kColumns, kOfLane = (kNumbers + K::kLanes - 1) / K::kLanes;
    static_assert(kNumbers <= kStagedNumbers<T, K> / K::kEdges);
    T numbers[kOfLane] = {};
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int k = place.column + i * K::kLanes;
      if (matrix && k < kNumbers) numbers[i] = weight * matrix[k];
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int k = place.column + i * K::kLanes;
      if (k < kNumbers) own[k] = numbers[i];
    }
    __syncwarp();
    f(0, K::kRows, own);
    return;
  }
  const int columns = static_cast<int>(shape.columns);
  const int rows = kStagedNumbers<T, K> / K::kEdges / columns;
  for (int64_t first = 0; first < shape.rows; first += rows) {
    const int count = static_cast<int>(shape.rows - first < rows ? shape.rows - first : rows);
    __syncwarp();
    if (matrix)
      for (int k = place.column; k < count * columns; k += K::kLanes)
        own[k] = weight * matrix[first * columns + k];
    __syncwarp();
    f(first, count, own);
  }
}

// Row r of a matrix in shared memory, from a column on.
template <class T, class K>
struct Factors {
  T numbers[K::kColumns];

  MDOPS_D Factors(const T* turn, int r, int64_t begin, int64_t columns) {
    constexpr int kSize = kVectorSize<T>;
    if constexpr (K::kRows > 0 && K::kColumns % kSize == 0) {
#pragma unroll
      for (int d = 0; d < K::kColumns; d += kSize) {
        const Vector<T, kSize> some(turn + r * K::kColumns + d);
#pragma unroll
        for (int k = 0; k < kSize; ++k) numbers[d + k] = some[k];
      }
    } else {
#pragma unroll
      for (int d = 0; d < K::kColumns; ++d)
        if (K::kWhole || begin + d < columns) numbers[d] = turn[r * columns + begin + d];
    }
  }
};

// kColumns columns of an edge's node, from `begin` on.
template <class T, int size, class K>
struct NodeColumns {
  Vector<T, size> numbers[K::kColumns];

  MDOPS_D NodeColumns(const NodeRows<T>& x, const RotationShape& shape, int64_t e, int64_t begin, int64_t c) {
    const int64_t width = shape.columns * shape.channels;
#pragma unroll
    for (int d = 0; d < K::kColumns; ++d)
      if (K::kWhole || begin + d < shape.columns)
        numbers[d] = node_row<T, size>(x, e, width, (begin + d) * shape.channels + c);
  }
};

template <class T, int size, class K>
__global__ void __launch_bounds__(kThreads, K::kBlocks) rotate_kernel(RotateArgs<T> args) {
  alignas(16) __shared__ T shared[kWarps * kStagedNumbers<T, K>];
  const Place<T, K> place(shared);
  const RotationShape shape = args.shape;
  const int64_t e = place.warp * K::kEdges + place.edge;
  const bool there = e < shape.edges, none = there && args.x.is_right(e) && args.x.is_none(e);
  const T* matrix = there && !none ? args.turn + e * shape.rows * shape.columns : nullptr;
  const T weight = args.weight && there ? args.weight[e] : T(1);
  with_rows<T, K>(place, shape, matrix, weight, [&](int64_t first, int rows, const T* turn) {
    if (!there) return;
    for (int64_t c = place.column * size; c < shape.channels; c += K::kLanes * size)
      for (int64_t begin = 0; begin < shape.columns; begin += K::kColumns) {
        const NodeColumns<T, size, K> x(args.x, shape, e, begin, c);
#pragma unroll K::kRows> 0 ? 2 : 1
        for (int r = 0; r < rows; ++r) {
          T* to = args.y + (e * shape.rows + first + r) * shape.channels + c;
          auto y = begin ? Vector<T, size>(to) : Vector<T, size>::all(T(0));
          const Factors<T, K> factors(turn, r, begin, shape.columns);
#pragma unroll
          for (int d = 0; d < K::kColumns; ++d)
            if (!none && (K::kWhole || begin + d < shape.columns)) {
#pragma unroll
              for (int k = 0; k < size; ++k) y[k] += factors.numbers[d] * x.numbers[d][k];
            }
          y.store(to);
        }
      }
  });
}

// A team of warps has a node; the lanes of an edge have every so many-th of its edges. The warps' sums are
// added in shared memory, in a fixed order.
template <class T, int size, class K, int kTeam>
__global__ void __launch_bounds__(kThreads, K::kBlocks) sum_kernel(RotateSumArgs<T> args) {
  constexpr int kLanes = K::kLanes, kEdges = K::kEdges, kColumns = K::kColumns;
  constexpr bool kWhole = K::kWhole;
  alignas(16) __shared__ T shared[kWarps * kStagedNumbers<T, K>];
  const Place<T, K> place(shared);
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
  // Lanes without channels also continue: they stage matrices, and take part in the sums.
  for (int64_t base = 0; base < shape.channels; base += kLanes * size) {
    const int64_t c = base + place.column * size;
    const bool has = c < shape.channels;
    for (int64_t column = 0; column < shape.columns; column += kColumns) {
      Vector<T, size> sums[kColumns];
#pragma unroll
      for (int d = 0; d < kColumns; ++d) sums[d] = Vector<T, size>::all(fits ? T(0) : not_a_number<T>());
      for (int64_t p = begin + member * kEdges; p < end; p += kTeam * kEdges) {
        const bool there = p + place.edge < end;
        const int64_t e = there ? row_at(edges, n, p + place.edge) : -1;
        const T* matrix = e >= 0 ? args.turn + e * shape.rows * shape.columns : nullptr;
        const T weight = args.weight && e >= 0 ? args.weight[e] : T(1);
        with_rows<T, K>(place, shape, matrix, weight, [&](int64_t first, int rows, const T* turn) {
          if (!there || !has) return;
          // An edge that does not belong to the node makes its sums NaN.
#pragma unroll K::kOfSums
          for (int r = 0; r < rows; ++r) {
            const auto y = e < 0
                               ? Vector<T, size>::all(not_a_number<T>())
                               : Vector<T, size>(args.y + (e * shape.rows + first + r) * shape.channels + c);
            const Factors<T, K> factors(turn, r, column, shape.columns);
#pragma unroll
            for (int d = 0; d < kColumns; ++d)
              if (kWhole || column + d < shape.columns) {
                const T factor = e < 0 ? T(1) : factors.numbers[d];
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
        static_assert(kColumns * kLanes * size <= kStagedNumbers<T, K>);
        __syncwarp();
#pragma unroll
        for (int d = 0; d < kColumns; ++d)
          if (place.edge == 0) sums[d].store(place.staged + (d * kLanes + place.column) * size);
        __syncthreads();
        // Each edge's lanes in the team have some of the columns.
        for (int d = member * kEdges + place.edge; d < kColumns; d += kTeam * kEdges) {
          auto sum = Vector<T, size>::all(T(0));
          const T* from = place.staged - member * kStagedNumbers<T, K> + (d * kLanes + place.column) * size;
          for (int warp = 0; warp < kTeam; ++warp, from += kStagedNumbers<T, K>) {
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

template <class T, int size>
MDOPS_D T dot(const Vector<T, size>& x, const Vector<T, size>& y) {
  T sum = x[0] * y[0];
#pragma unroll
  for (int k = 1; k < size; ++k) sum += x[k] * y[k];
  return sum;
}

template <class T, int size, class K>
__global__ void __launch_bounds__(kThreads, K::kBlocks) outer_kernel(RotateOuterArgs<T> args) {
  constexpr int kLanes = K::kLanes, kColumns = K::kColumns, kAtOnce = K::kAtOnce;
  constexpr int kGroups = kColumns / kLanes, kRest = kColumns % kLanes;
  constexpr bool kAhead = kAtOnce < K::kRows;
  constexpr int kCount = kAtOnce > 4 ? 8 : kAtOnce > 1 ? 4 : 1;  // rows whose rests are summed together
  static_assert(kAtOnce <= kCount && kCount <= kLanes);
  const RotationShape shape = args.shape;
  const int64_t e = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanes;
  const int lane = threadIdx.x % kLanes, row_of_rest = lane / (kLanes / kCount);
  const bool writes_rest = lane % (kLanes / kCount) == 0 && row_of_rest < kAtOnce;
  const bool there = e < shape.edges, none = there && args.x.is_right(e) && args.x.is_none(e);
  const int64_t rows = K::kRows ? K::kRows : shape.rows;
  const T weight = args.weight && there ? args.weight[e] : T(1);
  T by_weight = 0;
  for (int64_t base = 0; base < shape.channels; base += kLanes * size) {
    const int64_t c = base + lane * size;
    const bool has = there && !none && c < shape.channels;
    for (int64_t begin = 0; begin < shape.columns; begin += kColumns) {
      Vector<T, size> x[kColumns];
      if (has) {
        const NodeColumns<T, size, K> own(args.x, shape, e, begin, c);
#pragma unroll
        for (int d = 0; d < kColumns; ++d) x[d] = own.numbers[d];
      }
      const auto row_of = [&](int64_t r) {
        return Vector<T, size>(args.y + (e * rows + r) * shape.channels + c);
      };
      // If not all rows are loaded at once, the next ones are loaded before the last are used.
      Vector<T, size> next[kAtOnce];
      const auto ask = [&](int64_t first) {
#pragma unroll
        for (int r = 0; r < kAtOnce; ++r)
          if (has && first < rows) next[r] = row_of(first + r);
      };
      if (kAhead) ask(0);
      for (int64_t first = 0; first < rows; first += kAtOnce) {
        // A lane's part of the results: kGroups columns of each row, and the rest of one row.
        const auto place = [&](int r, int d) {
          return there && (K::kWhole || begin + d < shape.columns)
                     ? (e * rows + first + r) * shape.columns + begin + d
                     : -1;
        };
        Vector<T, size> y[kAtOnce];
        T factors[kAtOnce][kGroups + 1], factors_of_rest[kRest + 1];
        if constexpr (kAhead) {
#pragma unroll
          for (int r = 0; r < kAtOnce; ++r) y[r] = next[r];
          ask(first + kAtOnce);
        }
#pragma unroll
        for (int r = 0; r < kAtOnce; ++r) {
          if (!kAhead && has) y[r] = row_of(first + r);
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            const int64_t at = place(r, group * kLanes + lane);
            factors[r][group] = args.by_weight && at >= 0 ? args.of_weight[at] : T(0);
          }
        }
#pragma unroll
        for (int d = 0; d < kRest; ++d) {
          const int64_t at = writes_rest ? place(row_of_rest, kGroups * kLanes + d) : -1;
          factors_of_rest[d] = args.by_weight && at >= 0 ? args.of_weight[at] : T(0);
        }
        const auto write = [&](int64_t at, T value, T factor) {
          if (at < 0) return;
          args.turn[at] = base ? args.turn[at] + weight * value : weight * value;
          by_weight += value * factor;
        };
#pragma unroll
        for (int r = 0; r < kAtOnce; ++r)
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            T numbers[kLanes];
#pragma unroll
            for (int d = 0; d < kLanes; ++d) numbers[d] = dot(x[group * kLanes + d], y[r]);
            const T sum = sum_over_lanes<kLanes, kLanes>(numbers, lane);
            write(place(r, group * kLanes + lane), sum, factors[r][group]);
          }
#pragma unroll
        for (int d = 0; d < kRest; ++d) {
          T numbers[kCount] = {};
#pragma unroll
          for (int r = 0; r < kAtOnce; ++r) numbers[r] = dot(x[kGroups * kLanes + d], y[r]);
          const T sum = sum_over_lanes<kLanes, kCount>(numbers, lane);
          if (writes_rest) write(place(row_of_rest, kGroups * kLanes + d), sum, factors_of_rest[d]);
        }
      }
    }
  }
  if (args.by_weight) {
    by_weight = sum_over_lanes<kLanes, 1>(&by_weight, lane);
    if (there && lane == 0) args.by_weight[e] = none ? T(0) : by_weight;
  }
}

// Calls launch<vector size, compile-time sizes>().
template <class T, class F>
void with_sizes(const RotationShape& shape, const F& launch) {
  with_vector<T>(shape.channels, [&]<int size>() {
    const auto known = [&]<int kLanes, int kRows, int kColumns, bool kWhole>() {
      launch.template operator()<size, Known<kLanes, kRows, kColumns, kWhole>>();
    };
    const int64_t rows = shape.rows, columns = shape.columns;
    if constexpr (sizeof(T) == sizeof(float) && size == kVectorSize<T>) {
      const bool wide = shape.channels > 8 * size;
      if (rows == 7 && columns == 9)
        return wide ? known.template operator()<16, 7, 9, true>()
                    : known.template operator()<8, 7, 9, true>();
      if (rows == 10 && columns == 16)
        return wide ? known.template operator()<16, 10, 16, true>()
                    : known.template operator()<8, 10, 16, true>();
      if (rows == 13 && columns == 25) return known.template operator()<8, 13, 25, true>();
    }
    const bool all_at_once = with_one_of<4, 9, 16, 25>(
        columns, [&]<int kColumns>() { known.template operator()<8, 0, kColumns, true>(); });
    if (!all_at_once) known.template operator()<8, 0, 18, false>();
  });
}

template <class T>
void run_rotation(const Gpu& gpu, const RotateArgs<T>& args) {
  with_sizes<T>(args.shape, [&]<int size, class K>() {
    gpu.launch(rotate_kernel<T, size, K>, blocks_for(args.shape.edges, K::kEdges * kWarps), kThreads, 0,
               args);
  });
}

template <class T>
void run_rotation(const Gpu& gpu, const RotateSumArgs<T>& args) {
  with_sizes<T>(args.shape, [&]<int size, class K>() {
    const auto launch = [&]<int kTeam>() {
      gpu.launch(sum_kernel<T, size, K, kTeam>, blocks_for(args.shape.nodes, kWarps / kTeam), kThreads, 0,
                 args);
    };
    // Several warps per node if that takes less time: rounds of all blocks, times a warp's steps over a
    // node's edges plus one for the team's sum.
    const auto time = [&](int team) {
      const int64_t nodes = args.shape.nodes, blocks = blocks_for(nodes, kWarps / team);
      const int64_t rounds = blocks_for(blocks, K::kBlocks * gpu.limits().multiprocessors);
      return rounds * (blocks_for(args.shape.edges, nodes * team * K::kEdges) + (team > 1));
    };
    if (args.shape.nodes == 0 || (time(1) <= time(4) && time(1) <= time(8)))
      launch.template operator()<1>();
    else
      time(4) <= time(8) ? launch.template operator()<4>() : launch.template operator()<8>();
  });
}

template <class T>
void run_rotation(const Gpu& gpu, const RotateOuterArgs<T>& args) {
  with_sizes<T>(args.shape, [&]<int size, class K>() {
    gpu.launch(outer_kernel<T, size, K>, blocks_for(args.shape.edges, K::kEdges * kWarps), kThreads, 0, args);
  });
}

}  // namespace mdops::gpu_rotation

namespace mdops {
using gpu_rotation::run_rotation;
}  // namespace mdops
