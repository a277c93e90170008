// Moments of rows on a GPU. A block has a node. A warp has all rows of m = 0, or of both signs, in 32
// channels; their sums over edges, or the gradients by these, stay in registers. The matrices of a chunk of
// edges are in shared memory. Other sizes go number by number.
#pragma once

#include "common/gpu.h"
#include "common/gpu_lane_sums.h"
#include "common/rows.h"
#include "common/vector.h"
#include "graph/gpu_rows.h"
#include "order_moments/order_moments.h"

namespace mdops::gpu_order_moments {

constexpr int kAhead = 2;  // edges whose rows are loaded ahead

// Compile-time sizes: number type, degree, channels and their groups; edges in shared memory at once.
template <class T_, int L_, int kChannels_, int kGroups_, int kChunk_>
struct Known {
  using T = T_;
  static constexpr int L = L_, kChannels = kChannels_, kGroups = kGroups_, kChunk = kChunk_;
  static constexpr int kRows = 3 * L + 1;
  static constexpr int kColumns = (L + 1) * (L + 1), kTurned = kColumns - 1;  // turned: of l > 0
  static constexpr int kPieces = kChannels / kWarp;                           // warps that share rows
  static constexpr int kWarps = 2 * kPieces, kThreads = kWarps * kWarp;
  // Blocks per multiprocessor for which registers suffice, at most `most`.
  static constexpr int blocks(int most) {
    const int fitting = 128 * most / (sizeof(T) / sizeof(float)) / kThreads;
    return fitting < 1 ? 1 : fitting < most ? fitting : most;
  }
  // Adjacent lanes of one warp and one group.
  static constexpr int kParts = kGroups > kPieces ? kGroups : kPieces, kLanes = kChannels / kParts;
  static constexpr int kNumbers = kRows * kChannels, kMatrix = kRows * kColumns;
  // An edge's numbers in shared memory, in vectors of four: t_0, t_- and t_+.
  static constexpr int kMiddle = (kColumns + 3) / 4 * 4, kSign = (kTurned + 3) / 4 * 4;
  static constexpr int kOfEdge = kMiddle + 2 * kSign;
  static constexpr int kEntries = kColumns + 2 * kTurned;  // without padding

  __device__ static int degree(int column) { return column < 1 ? 0 : column < 4 ? 1 : column < 9 ? 2 : 3; }
  __device__ static int group(int part) { return part * kGroups / kParts; }
};

// The index of an edge's k-th number, padding aside, in shared memory, and in the edge's matrix.
template <class K>
struct Entry {
  int place, of_matrix;

  MDOPS_D explicit Entry(int k) {
    const int part = k < K::kColumns ? 0 : k < K::kColumns + K::kTurned ? 1 : 2;
    const int d = part == 0 ? k : k - K::kColumns - (part - 1) * K::kTurned + 1;
    place = part == 0 ? d : K::kMiddle + (part - 1) * K::kSign + d - 1;
    of_matrix = (part * K::L + K::degree(d)) * K::kColumns + d;
  }
};

// A chunk of a node's edges, with their matrices and weights. An edge of another node is -1; its weight makes
// the node's sums NaN.
template <class K>
struct Chunk {
  using T = typename K::T;
  alignas(16) T turn[K::kChunk][K::kOfEdge];
  T weight[K::kChunk][K::kGroups];
  int edge[K::kChunk];

  // Loads the edges at places [p, p + count). All threads of the block call it.
  MDOPS_D void load(const OrderMomentArgs<typename K::T>& args, int64_t n, int64_t p, int count) {
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += K::kThreads) {
      const int64_t e = gpu_graph_rows::row_at(args.of, n, p + i);
      edge[i] = static_cast<int>(e);
#pragma unroll
      for (int g = 0; g < K::kGroups; ++g)
        weight[i][g] = e < 0 ? not_a_number<T>() : args.weight[e * K::kGroups + g];
    }
    __syncthreads();
    // A thread loads several numbers at once; asynchronous copies to shared memory took longer.
    constexpr int kAtOnce = 8;
    for (int base = threadIdx.x; base < count * K::kEntries; base += kAtOnce * K::kThreads) {
      T numbers[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int k = base + u * K::kThreads, e = k < count * K::kEntries ? edge[k / K::kEntries] : -1;
        numbers[u] = e < 0 ? T(0) : args.turn[int64_t{e} * K::kMatrix + Entry<K>(k % K::kEntries).of_matrix];
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int k = base + u * K::kThreads;
        if (k < count * K::kEntries) turn[k / K::kEntries][Entry<K>(k % K::kEntries).place] = numbers[u];
      }
    }
    __syncthreads();
  }
};

// kCount numbers from shared memory, 16 bytes at a time.
template <class T, int kCount>
struct Numbers {
  T of[(kCount + 3) / 4 * 4];

  MDOPS_D explicit Numbers(const T* from) {
#pragma unroll
    for (int k = 0; k < kCount; k += kVectorSize<T>) {
      const Vector<T, kVectorSize<T>> some(from + k);
#pragma unroll
      for (int i = 0; i < kVectorSize<T>; ++i) of[k + i] = some[i];
    }
  }
};

// Calls f(i, numbers) for a chunk's edges in order, with a lane's channel of kCount rows each. The next
// edges' rows are loaded ahead: without conditions, so that no load waits where it is issued.
template <int kCount, class K, class F>
MDOPS_D void each_edge(const Chunk<K>& chunk, const typename K::T* y, int count, const F& f) {
  using T = typename K::T;
  T next[kAhead][kCount];
  const auto ask = [&](int u, int i) {
    const int64_t e = max(chunk.edge[min(i, count - 1)], 0);
#pragma unroll
    for (int r = 0; r < kCount; ++r) next[u][r] = y[e * K::kNumbers + r * K::kChannels];
  };
#pragma unroll
  for (int u = 0; u < kAhead; ++u) ask(u, u);
  for (int base = 0; base < count; base += kAhead)
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      if (base + u >= count) break;
      T rows[kCount];
#pragma unroll
      for (int r = 0; r < kCount; ++r) rows[r] = next[u][r];
      ask(u, base + u + kAhead);
      f(base + u, rows);
    }
}

// The part of a lane: rows of m = 0 or of both signs, in one channel, and the index of the first number.
template <class K>
struct OfLane {
  int part, group, first;
  bool is_middle;

  __device__ OfLane() {
    const int warp = warp_index(), channel = warp % K::kPieces * kWarp + lane_index();
    part = channel / K::kLanes, group = K::group(part), is_middle = warp < K::kPieces;
    first = (is_middle ? 0 : K::L + 1) * K::kChannels + channel;
  }
  // The index of a node's moment, or gradient, in column d and `row` rows after the first.
  __device__ int64_t place(int64_t n, int d, int row) const {
    return (n * K::kColumns + d) * K::kNumbers + row * K::kChannels + first;
  }
};

template <class K>
__global__ void __launch_bounds__(K::kThreads, K::blocks(4))
    moments_kernel(const OrderMomentArgs<typename K::T> args) {
  using T = typename K::T;
  constexpr int L = K::L;
  __shared__ Chunk<K> chunk;
  const int64_t n = blockIdx.x;
  const gpu_graph_rows::RowsOfNode rows(args.of, n);
  const T begin = rows.is_wrong ? not_a_number<T>() : T(0);
  const OfLane<K> own;
  const auto each_chunk = [&](const auto& work) {
    for (int64_t p = rows.begin; p < rows.end; p += K::kChunk) {
      const int count = static_cast<int>(min(rows.end - p, int64_t{K::kChunk}));
      chunk.load(args, n, p, count);
      work(count);
    }
  };
  const auto write = [&](int d, int row, T sum) { args.moments[own.place(n, d, row)] = sum; };
  if (own.is_middle) {
    T sums[L + 1][K::kColumns];
#pragma unroll
    for (int l = 0; l <= L; ++l)
#pragma unroll
      for (int d = 0; d < K::kColumns; ++d) sums[l][d] = begin;
    each_chunk([&](int count) {
      each_edge<L + 1>(chunk, args.y + own.first, count, [&](int i, const T* y) {
        const Numbers<T, K::kColumns> turn(chunk.turn[i]);
#pragma unroll
        for (int l = 0; l <= L; ++l) {
          const T weighted = chunk.weight[i][own.group] * y[l];
#pragma unroll
          for (int d = 0; d < K::kColumns; ++d) sums[l][d] += turn.of[d] * weighted;
        }
      });
    });
#pragma unroll
    for (int l = 0; l <= L; ++l)
#pragma unroll
      for (int d = 0; d < K::kColumns; ++d) write(d, l, sums[l][d]);
    return;
  }
  T u[L][K::kTurned], v[L][K::kTurned];
#pragma unroll
  for (int l = 0; l < L; ++l)
#pragma unroll
    for (int d = 0; d < K::kTurned; ++d) u[l][d] = v[l][d] = begin;
  each_chunk([&](int count) {
    each_edge<2 * L>(chunk, args.y + own.first, count, [&](int i, const T* y) {
      const Numbers<T, K::kTurned> of_negative(chunk.turn[i] + K::kMiddle),
          of_positive(chunk.turn[i] + K::kMiddle + K::kSign);
#pragma unroll
      for (int l = 0; l < L; ++l) {
        const T weight = chunk.weight[i][own.group];
        const T negative = weight * y[l], positive = weight * y[L + l];
#pragma unroll
        for (int d = 0; d < K::kTurned; ++d) {
          u[l][d] += of_negative.of[d] * negative;
          v[l][d] += of_positive.of[d] * negative;
          u[l][d] += of_positive.of[d] * positive;
          v[l][d] -= of_negative.of[d] * positive;
        }
      }
    });
  });
#pragma unroll
  for (int l = 0; l < L; ++l) {
#pragma unroll
    for (int d = 0; d < K::kTurned; ++d) write(d + 1, l, u[l][d]), write(d + 1, L + l, v[l][d]);
    write(0, l, begin), write(0, L + l, begin);  // the column of l = 0 has none
  }
}

// The smallest power of two that is not less.
MDOPS_HD constexpr int power_of_two(int count) {
  int power = 1;
  while (power < count) power *= 2;
  return power;
}

// Sums kCount numbers over kLanes adjacent lanes, and writes the sums side by side.
template <int kCount, int kLanes, class T>
MDOPS_D void write_sums(T* numbers, T* to) {
  constexpr int kAtOnce = power_of_two(kCount) < kLanes ? power_of_two(kCount) : kLanes;
  constexpr int kOfNumber = kLanes / kAtOnce;
#pragma unroll
  for (int base = 0; base < kCount; base += kAtOnce) {
    const int lane = lane_index() % kLanes, k = base + lane / kOfNumber;
    const T sum = sum_over_lanes<kLanes, kAtOnce>(numbers + base, lane);
    if (lane % kOfNumber == 0 && k < kCount) to[k] = sum;
  }
}

// The terms of the gradients by edges' matrices, one for each part of the channels.
template <class K>
struct Parts {
  using T = typename K::T;
  T of_middle[K::kParts][K::kChunk][K::kMiddle], of_signs[K::kParts][K::kChunk][2 * K::kSign];
  T sums[K::kChunk][K::kOfEdge];

  // Sums them for a chunk's edges, by all threads; a warp has an edge.
  MDOPS_D void finish(const OrderMomentArgs<typename K::T>& args, const Chunk<K>& chunk, int count) {
    __syncthreads();
    const int lane = lane_index();
    for (int i = warp_index(); i < count; i += K::kWarps) {
      T by_weight[K::kGroups] = {};
#pragma unroll
      for (int k = 0; k < K::kOfEdge; k += kWarp) {
        const int at = k + lane;
        if (at >= K::kOfEdge) break;
        const int d = at < K::kMiddle ? at : (at - K::kMiddle) % K::kSign + 1;
        const T turn = d < K::kColumns ? chunk.turn[i][at] : T(0);
        T sum = 0;
#pragma unroll
        for (int part = 0; part < K::kParts; ++part) {
          const T own = at < K::kMiddle ? of_middle[part][i][at] : of_signs[part][i][at - K::kMiddle];
          sum += chunk.weight[i][K::group(part)] * own;
          if (d < K::kColumns) by_weight[K::group(part)] += own * turn;
        }
        sums[i][at] = sum;
      }
#pragma unroll
      for (int g = 0; g < K::kGroups; ++g) by_weight[g] = warp_sum(by_weight[g]);
      __syncwarp();
      const int e = chunk.edge[i];
      if (e < 0) continue;
      if (lane == 0)
#pragma unroll
        for (int g = 0; g < K::kGroups; ++g) args.by_weight[int64_t{e} * K::kGroups + g] = by_weight[g];
      for (int k = lane; k < K::kMatrix; k += kWarp) {
        const int row = k / K::kColumns, d = k % K::kColumns;
        const int part = row <= K::L ? 0 : row <= 2 * K::L ? 1 : 2, l = row - part * K::L;
        const int at = part == 0 ? d : K::kMiddle + (part - 1) * K::kSign + d - 1;
        args.by_turn[int64_t{e} * K::kMatrix + k] = l == K::degree(d) ? sums[i][at] : T(0);
      }
    }
  }
};

template <class K>
__global__ void __launch_bounds__(K::kThreads, K::blocks(3))
    gradients_kernel(const OrderMomentArgs<typename K::T> args) {
  using T = typename K::T;
  constexpr int L = K::L;
  __shared__ Chunk<K> chunk;
  __shared__ Parts<K> parts;
  const int64_t n = blockIdx.x;
  const gpu_graph_rows::RowsOfNode rows(args.of, n);
  const OfLane<K> own;
  const auto each_chunk = [&](const auto& work) {
    for (int64_t p = rows.begin; p < rows.end; p += K::kChunk) {
      const int count = static_cast<int>(min(rows.end - p, int64_t{K::kChunk}));
      chunk.load(args, n, p, count);
      work(count);
      parts.finish(args, chunk, count);
    }
  };
  const auto write = [&](int i, int row, T by_y) {
    if (chunk.edge[i] >= 0)
      args.by_y[int64_t{chunk.edge[i]} * K::kNumbers + row * K::kChannels + own.first] =
          chunk.weight[i][own.group] * by_y;
  };
  const auto grad_of = [&](int d, int row) { return args.grad[own.place(n, d, row)]; };
  if (own.is_middle) {
    T grad[L + 1][K::kColumns];
#pragma unroll
    for (int l = 0; l <= L; ++l)
#pragma unroll
      for (int d = 0; d < K::kColumns; ++d) grad[l][d] = grad_of(d, l);
    each_chunk([&](int count) {
      each_edge<L + 1>(chunk, args.y + own.first, count, [&](int i, const T* y) {
        const Numbers<T, K::kColumns> turn(chunk.turn[i]);
        T by_turn[power_of_two(K::kColumns)] = {};
#pragma unroll
        for (int l = 0; l <= L; ++l) {
          T by_y = 0;
#pragma unroll
          for (int d = 0; d < K::kColumns; ++d) {
            by_y += turn.of[d] * grad[l][d];
            by_turn[d] += y[l] * grad[l][d];
          }
          write(i, l, by_y);
        }
        write_sums<K::kColumns, K::kLanes>(by_turn, parts.of_middle[own.part][i]);
      });
    });
    return;
  }
  T u[L][K::kTurned], v[L][K::kTurned];
#pragma unroll
  for (int l = 0; l < L; ++l)
#pragma unroll
    for (int d = 0; d < K::kTurned; ++d) u[l][d] = grad_of(d + 1, l), v[l][d] = grad_of(d + 1, L + l);
  each_chunk([&](int count) {
    each_edge<2 * L>(chunk, args.y + own.first, count, [&](int i, const T* y) {
      const Numbers<T, K::kTurned> of_negative(chunk.turn[i] + K::kMiddle),
          of_positive(chunk.turn[i] + K::kMiddle + K::kSign);
      T by_turn[power_of_two(2 * K::kSign)] = {};
#pragma unroll
      for (int l = 0; l < L; ++l) {
        T by_negative = 0, by_positive = 0;
#pragma unroll
        for (int d = 0; d < K::kTurned; ++d) {
          by_negative += of_negative.of[d] * u[l][d];
          by_positive += of_positive.of[d] * u[l][d];
          by_negative += of_positive.of[d] * v[l][d];
          by_positive -= of_negative.of[d] * v[l][d];
          by_turn[d] += y[l] * u[l][d];
          by_turn[K::kSign + d] += y[L + l] * u[l][d];
          by_turn[d] -= y[L + l] * v[l][d];
          by_turn[K::kSign + d] += y[l] * v[l][d];
        }
        write(i, l, by_negative);
        write(i, L + l, by_positive);
      }
      write_sums<2 * K::kSign, K::kLanes>(by_turn, parts.of_signs[own.part][i]);
    });
  });
}

constexpr int kThreads = 256;

// The gradients of edges without a node, which the nodes' kernel does not write: zero, or NaN if the nodes'
// lists wrongly leave them out. A warp has an edge.
template <class T>
__global__ void __launch_bounds__(kThreads) left_out_kernel(const OrderMomentArgs<T> args) {
  const OrderMomentShape& shape = args.shape;
  const int64_t e = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kWarp;
  if (e >= shape.edges) return;
  const int64_t n = args.of.index[e];
  const bool is_right = n >= -1 && n < shape.nodes;
  const bool is_listed =
      !args.of.order && is_right && n >= 0 && args.of.offsets[n] <= e && e < args.of.offsets[n + 1];
  if (is_listed) return;
  const T value = is_right && n < 0 ? T(0) : not_a_number<T>();
  const int lane = lane_index();
  for (int64_t k = lane; k < shape.matrix(); k += kWarp) args.by_turn[e * shape.matrix() + k] = value;
  for (int64_t k = lane; k < shape.numbers(); k += kWarp) args.by_y[e * shape.numbers() + k] = value;
  for (int64_t g = lane; g < shape.groups; g += kWarp) args.by_weight[e * shape.groups + g] = value;
}

// An edge's numbers t_0, t_- and t_+ in column d.
template <class T>
struct OfColumn {
  T middle, negative = 0, positive = 0;

  __device__ OfColumn(const OrderMomentArgs<T>& args, int64_t e, int64_t d) {
    const int64_t l = degree_of_column(d), degree = args.shape.degree, columns = args.shape.columns();
    const T* const turn = args.turn + e * args.shape.matrix() + d;
    middle = turn[l * columns];
    if (l > 0) negative = turn[(degree + l) * columns], positive = turn[(2 * degree + l) * columns];
  }
};

// One moment of a node per thread.
template <class T>
__global__ void __launch_bounds__(kThreads) moment_kernel(const OrderMomentArgs<T> args) {
  const OrderMomentShape& shape = args.shape;
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, numbers = shape.numbers();
  if (at >= shape.nodes * shape.columns() * numbers) return;
  const int64_t k = at % numbers, d = at / numbers % shape.columns(), n = at / (numbers * shape.columns());
  const gpu_graph_rows::RowsOfNode rows(args.of, n);
  const int part = k < shape.middle() ? 0 : k < shape.middle() + shape.side() ? 1 : 2;
  const int64_t of_negative = k - (part == 2) * shape.side();
  T sum = rows.is_wrong ? not_a_number<T>() : T(0);
  for (int64_t p = rows.begin; p < rows.end; ++p) {
    const int64_t e = gpu_graph_rows::row_at(args.of, n, p);
    if (e < 0) {
      sum = not_a_number<T>();
      continue;
    }
    const OfColumn<T> turn(args, e, d);
    const T *const y = args.y + e * numbers, weight = args.weight[e * shape.groups + shape.group(k)];
    if (part == 0)
      sum += weight * turn.middle * y[k];
    else if (part == 1)
      sum += weight * (turn.negative * y[of_negative] + turn.positive * y[of_negative + shape.side()]);
    else
      sum += weight * (turn.positive * y[of_negative] - turn.negative * y[of_negative + shape.side()]);
  }
  args.moments[at] = sum;
}

// All gradients of an edge per thread.
template <class T>
__global__ void __launch_bounds__(kThreads) gradient_kernel(const OrderMomentArgs<T> args) {
  const OrderMomentShape& shape = args.shape;
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (e >= shape.edges) return;
  const int64_t n = args.of.index[e], numbers = shape.numbers(), columns = shape.columns(),
                side = shape.side();
  if (n < 0 || n >= shape.nodes) return;  // left out
  const T* const grad = args.grad + n * columns * numbers;
  const T *const y = args.y + e * numbers, *const weights = args.weight + e * shape.groups;
  T *const by_y = args.by_y + e * numbers, *const by_turn = args.by_turn + e * shape.matrix();
  T* const by_weight = args.by_weight + e * shape.groups;
  for (int64_t g = 0; g < shape.groups; ++g) by_weight[g] = 0;
  for (int64_t k = 0; k < numbers; ++k) by_y[k] = 0;
  for (int64_t k = 0; k < shape.matrix(); ++k) by_turn[k] = 0;
  for (int64_t d = 0; d < columns; ++d) {
    const OfColumn<T> turn(args, e, d);
    const T *const of_middle = grad + d * numbers, *const u = of_middle + shape.middle(), *const v = u + side;
    T by_middle = 0, by_negative = 0, by_positive = 0;
    for (int64_t k = 0; k < shape.middle(); ++k) {
      const int64_t g = shape.group(k);
      const T weight = weights[g], by = y[k] * of_middle[k];
      by_y[k] += weight * turn.middle * of_middle[k];
      by_middle += weight * by;
      by_weight[g] += turn.middle * by;
    }
    for (int64_t k = 0, at = shape.middle(); k < side; ++k, ++at) {
      const int64_t g = shape.group(k);
      const T weight = weights[g], negative = y[at] * u[k] - y[at + side] * v[k],
              positive = y[at + side] * u[k] + y[at] * v[k];
      by_y[at] += weight * (turn.negative * u[k] + turn.positive * v[k]);
      by_y[at + side] += weight * (turn.positive * u[k] - turn.negative * v[k]);
      by_negative += weight * negative;
      by_positive += weight * positive;
      by_weight[g] += turn.negative * negative + turn.positive * positive;
    }
    const int64_t l = degree_of_column(d);
    by_turn[l * columns + d] = by_middle;
    if (l == 0) continue;
    by_turn[(shape.degree + l) * columns + d] = by_negative;
    by_turn[(2 * shape.degree + l) * columns + d] = by_positive;
  }
}

// Calls f<L, channels, groups>() if there is a kernel for these sizes.
template <class T, class F>
bool with_known(const OrderMomentShape& shape, const F& f) {
  const auto with_degree = [&]<int channels, int groups>() {
    return with_one_of<1, 2, 3>(shape.degree, [&]<int L>() { f.template operator()<L, channels, groups>(); });
  };
  if constexpr (sizeof(T) == sizeof(float)) {
    if (shape.groups == 2 && shape.channels == 32) return with_degree.template operator()<32, 2>();
    if (shape.groups == 2 && shape.channels == 64) return with_degree.template operator()<64, 2>();
    if (shape.groups == 1 && shape.channels == 96) return with_degree.template operator()<96, 1>();
    if (shape.groups == 1 && shape.channels == 128) return with_degree.template operator()<128, 1>();
  }
  if (shape.groups == 1 && shape.channels == 32) return with_degree.template operator()<32, 1>();
  if (shape.groups == 1 && shape.channels == 64) return with_degree.template operator()<64, 1>();
  return false;
}

template <class T>
void run_order_moments(const Gpu& gpu, const OrderMomentArgs<T>& args) {
  const OrderMomentShape& shape = args.shape;
  if (args.grad) gpu.launch_for(shape.edges * kWarp, kThreads, left_out_kernel<T>, args);
  const bool is_known = with_known<T>(shape, [&]<int L, int channels, int groups>() {
    using Forward = Known<T, L, channels, groups, 96>;
    using Backward = Known<T, L, channels, groups, 128 / sizeof(T)>;
    args.grad ? gpu.launch(gradients_kernel<Backward>, shape.nodes, Backward::kThreads, 0, args)
              : gpu.launch(moments_kernel<Forward>, shape.nodes, Forward::kThreads, 0, args);
  });
  if (is_known) return;
  args.grad
      ? gpu.launch_for(shape.edges, kThreads, gradient_kernel<T>, args)
      : gpu.launch_for(shape.nodes * shape.columns() * shape.numbers(), kThreads, moment_kernel<T>, args);
}

}  // namespace mdops::gpu_order_moments

namespace mdops {
using gpu_order_moments::run_order_moments;
}  // namespace mdops
