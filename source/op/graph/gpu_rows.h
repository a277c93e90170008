// The kernels that copy rows of nodes to edges and sum them back: a row has as many lanes as it has vectors
// of numbers, up to a warp. Sums always follow `order`.
#pragma once

#include "common/gpu.h"
#include "common/gpu_unroll.h"
#include "common/rows.h"
#include "common/vector.h"
#include "graph/rows.h"

namespace mdops::gpu_graph_rows {

constexpr int kThreads = kRowThreads, kAhead = 4;  // rows that a lane loads at once
// When nodes are few, in blocks per multiprocessor, and rows many for each node.
constexpr int kFewBlocks = 4, kManyRows = 8;

template <class T, int size>
__global__ void __launch_bounds__(kThreads) gather_kernel(GatherArgs<T> args, int lanes) {
  const RowOfLanes place(lanes);
  if (place.row >= args.rows) return;
  const bool right = args.is_right(place.row);
  const int64_t from = args.index[place.row];
  const auto none = Vector<T, size>::all(right ? T(0) : not_a_number<T>());
  for (int64_t k = place.first * size; k < args.width; k += place.step * size) {
    Vector<T, size> row = right && from >= 0 ? Vector<T, size>(args.x + from * args.stride + k) : none;
    if (args.base) row = row + Vector<T, size>(args.base + place.row * args.width + k);
    row.store(args.y + place.row * args.width + k);
  }
}

// The row at place p of those of node m, or -1 if it is not the node's.
MDOPS_D int64_t row_at(const auto& args, int64_t m, int64_t p) {
  const int64_t row = args.order ? args.order[p] : p;
  return row >= 0 && row < args.rows && args.index[row] == m ? row : -1;
}

// Adds term(row, column) of the rows of node m at places [p, end), with some loads ahead.
template <class T, int size, class Args, class F>
MDOPS_D void add_rows(Vector<T, size>& sum, const Args& args, int64_t m, int64_t p, int64_t end, int64_t k,
                      const F& term) {
  for (; p < end; p += kAhead) {
    Vector<T, size> ahead[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      if (p + n >= end) break;
      const int64_t row = row_at(args, m, p + n);
      ahead[n] = row < 0 ? Vector<T, size>::all(not_a_number<T>()) : term(row, k);
    }
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      if (p + n >= end) break;
      sum += ahead[n];
    }
  }
}

// The rows of a node; no rows, and `is_wrong`, if its offsets are wrong.
struct RowsOfNode {
  int64_t begin, end;
  bool is_wrong;

  MDOPS_D RowsOfNode(const auto& args, int64_t m) : begin(args.offsets[m]), end(args.offsets[m + 1]) {
    is_wrong = begin < 0 || begin > end || end > args.rows;
    if (is_wrong) begin = end = 0;
  }
};

// begin(node, column) and, of the first columns, the sum of term(row, column) over the rows of a node to out
// (targets, W).
// `kOfBlock`: a block has a node. Its threads look up the places and owners of as many rows at once; then as
// many of them as a row has vectors take one row each, and the next ones.
template <class T, int size, bool kOfBlock, class Args, class B, class F>
MDOPS_D void sum_rows(const Args& args, int lanes, int64_t summed, T* out, const B& begin_of, const F& term) {
  const RowOfLanes place(lanes);
  const int64_t m = kOfBlock ? blockIdx.x : place.row;
  if (m >= args.targets) return;
  const RowsOfNode rows(args, m);
  const auto start = [&](int64_t k) {
    return rows.is_wrong ? Vector<T, size>::all(not_a_number<T>()) : begin_of(m, k);
  };
  if constexpr (kOfBlock) {
    alignas(16) __shared__ T parts[kThreads * size];
    __shared__ int32_t found[kThreads];
    constexpr int kNoRow = -2;
    const int vectors = static_cast<int>(max(min(args.width / size, int64_t{kThreads}), int64_t{1}));
    const int count = kThreads / vectors;
    const int part = threadIdx.x / vectors, vector = threadIdx.x % vectors;
    for (int64_t at = 0; at < args.width; at += int64_t{vectors} * size) {
      const int64_t k = at + vector * size;
      const bool is_summed = part < count && k < summed;
      auto sum = Vector<T, size>::all(T(0));
      for (int64_t begin = rows.begin; begin < rows.end; begin += kThreads) {
        const int some = static_cast<int>(min(rows.end - begin, int64_t{kThreads}));
        __syncthreads();
        if (threadIdx.x < some)
          found[threadIdx.x] = static_cast<int32_t>(row_at(args, m, begin + threadIdx.x));
        __syncthreads();
        for (int n = part; is_summed && n < some; n += kAhead * count) {
          Vector<T, size> ahead[kAhead];  // no branches between them, so that all loads run at once
#pragma unroll
          for (int u = 0; u < kAhead; ++u) {
            const int64_t row = n + u * count < some ? found[n + u * count] : kNoRow;
            if (row != kNoRow) ahead[u] = row < 0 ? Vector<T, size>::all(not_a_number<T>()) : term(row, k);
          }
#pragma unroll
          for (int u = 0; u < kAhead; ++u) sum = sum + ahead[u];
        }
      }
      __syncthreads();
      sum.store(parts + threadIdx.x * size);
      __syncthreads();
      if (part > 0 || k >= args.width) continue;
      sum = start(k);
      for (int n = 0; n < count; ++n) sum = sum + Vector<T, size>(parts + (n * vectors + vector) * size);
      sum.store(out + m * args.width + k);
    }
  } else {
    for (int64_t k = place.first * size; k < args.width; k += place.step * size) {
      auto sum = start(k);
      if (k < summed) add_rows(sum, args, m, rows.begin, rows.end, k, term);
      sum.store(out + m * args.width + k);
    }
  }
}

template <class T, int size, bool kOfBlock>
__global__ void __launch_bounds__(kThreads) scatter_kernel(ScatterArgs<T> args, int lanes) {
  const auto begin = [&](int64_t m, int64_t k) {
    auto sum = args.base ? Vector<T, size>(args.base + m * args.width + k) : Vector<T, size>::all(T(0));
    return args.more ? sum + Vector<T, size>(args.more + m * args.more_stride + k) : sum;
  };
  sum_rows<T, size, kOfBlock>(args, lanes, args.stride, args.x, begin, [&](int64_t row, int64_t k) {
    return Vector<T, size>(args.y + row * args.stride + k);
  });
}

// The numbers of a node at an edge from column k on: zeros if there is none, NaN if the index is wrong.
template <class T, int size>
MDOPS_D Vector<T, size> node_row(const NodeRows<T>& x, int64_t row, int64_t width, int64_t k) {
  if (!x.is_right(row)) return Vector<T, size>::all(not_a_number<T>());
  return x.is_none(row) ? Vector<T, size>::all(T(0)) : Vector<T, size>(x.at(row, width) + k);
}

template <class T, int size>
__global__ void __launch_bounds__(kThreads) product_kernel(ProductArgs<T> args, int lanes) {
  const RowOfLanes place(lanes);
  const int64_t row = place.row, width = args.width;
  if (row >= args.rows) return;
  // A row without one of its nodes is zero, even if the other has infinite numbers.
  const bool right = args.x.is_right(row) && args.y.is_right(row);
  const bool none = right && (args.x.is_none(row) || args.y.is_none(row));
  for (int64_t k = place.first * size; k < width; k += place.step * size) {
    auto z = Vector<T, size>::all(T(0));
    if (!none) z = node_row<T, size>(args.x, row, width, k) * node_row<T, size>(args.y, row, width, k);
    z.store(args.z + row * width + k);
  }
}

template <class T, int size, bool kOfBlock>
__global__ void __launch_bounds__(kThreads) weighted_sum_kernel(WeightedSumArgs<T> args, int lanes) {
  const auto nothing = [](int64_t, int64_t) { return Vector<T, size>::all(T(0)); };
  sum_rows<T, size, kOfBlock>(args, lanes, args.width, args.z, nothing, [&](int64_t row, int64_t k) {
    if (args.x.is_right(row) && args.x.is_none(row)) return Vector<T, size>::all(T(0));
    return Vector<T, size>(args.weight + row * args.width + k) *
           node_row<T, size>(args.x, row, args.width, k);
  });
}

template <class T>
void run_graph(const Gpu& gpu, const GatherArgs<T>& args) {
  with_row_lanes<T>(args.width, args.stride, [&]<int size>(int lanes) {
    gpu.launch_for(args.rows << lanes, kThreads, gather_kernel<T, size>, args, lanes);
  });
}

// Calls launch(vector size, whether a block has a node, constants; log2 of the lanes per row; blocks): few
// nodes with many rows each have a block each, so that their rows are summed in parallel.
template <class T, class Args, class F>
void with_sums(const Gpu& gpu, const Args& args, int64_t stride, const F& launch) {
  with_row_lanes<T>(args.width, stride, [&]<int size>(int lanes) {
    const int64_t blocks = blocks_for(args.targets << lanes, kThreads);
    if (blocks < kFewBlocks * gpu.limits().multiprocessors && args.rows >= kManyRows * args.targets)
      launch.template operator()<size, true>(lanes, args.targets);
    else
      launch.template operator()<size, false>(lanes, blocks);
  });
}

template <class T>
void run_graph(const Gpu& gpu, const ScatterArgs<T>& args) {
  with_sums<T>(gpu, args, args.stride, [&]<int size, bool kOfBlock>(int lanes, int64_t blocks) {
    gpu.launch(scatter_kernel<T, size, kOfBlock>, blocks, kThreads, 0, args, lanes);
  });
}

template <class T>
void run_graph(const Gpu& gpu, const ProductArgs<T>& args) {
  with_row_lanes<T>(args.width, 0, [&]<int size>(int lanes) {
    gpu.launch_for(args.rows << lanes, kThreads, product_kernel<T, size>, args, lanes);
  });
}

template <class T>
void run_graph(const Gpu& gpu, const WeightedSumArgs<T>& args) {
  with_sums<T>(gpu, args, 0, [&]<int size, bool kOfBlock>(int lanes, int64_t blocks) {
    gpu.launch(weighted_sum_kernel<T, size, kOfBlock>, blocks, kThreads, 0, args, lanes);
  });
}

}  // namespace mdops::gpu_graph_rows

namespace mdops {
using gpu_graph_rows::run_graph;
}
