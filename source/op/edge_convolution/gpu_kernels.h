// The kernels of convolutions along edges: a thread has a column, and of a part of the filters' matrix its
// numbers in registers, by which the numbers of edges are multiplied as shared memory gives them to all lanes
// of a warp. No array of edges times columns goes to memory, and all sums have a fixed order.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/gpu.h"
#include "common/rows.h"
#include "common/vector.h"
#include "edge_convolution/edge_convolution.h"
#include "graph/gpu_rows.h"

namespace mdops {

namespace gpu_edge_convolution {

using gpu_graph_rows::row_at;

constexpr int kColumns = 128, kThreads = kColumns, kWarps = kThreads / kWarp;
constexpr int kInputs = 32;  // rows of W that a thread has at once
constexpr int kTurns = 3;    // sums of turned nodes in one pass
template <class T>
constexpr int kEdges = 128 / sizeof(T);  // in shared memory at once

// A node's row at an edge: its number, kNone, or kWrong for an index out of range.
constexpr int32_t kNone = -1, kWrong = -2;
template <class T>
__device__ __forceinline__ int32_t node_at(const NodeRows<T>& x, int64_t row) {
  return x.is_right(row) ? x.index[row] : kWrong;
}
template <class T>
__device__ __forceinline__ T number_at(const T* x, int32_t node, int64_t stride, int64_t column) {
  if (node >= 0) return x[node * stride + column];
  return node == kNone ? T(0) : not_a_number<T>();
}

// sum_k b_k weight_k of this thread's numbers.
template <class T>
__device__ __forceinline__ T product(const T* b, const T (&weight)[kInputs]) {
  T sum = 0;
#pragma unroll
  for (int k = 0; k < kInputs; k += kVectorSize<T>) {
    const Vector<T, kVectorSize<T>> some(b + k);
#pragma unroll
    for (int c = 0; c < kVectorSize<T>; ++c) sum += some[c] * weight[k + c];
  }
  return sum;
}

// Rows [first, first + kInputs) of W in a column; zeros beyond.
template <class T>
__device__ __forceinline__ void load_column(const EdgeConvolutionArgs<T>& args, int64_t first, int64_t column,
                                            T (&weight)[kInputs]) {
#pragma unroll
  for (int k = 0; k < kInputs; ++k)
    weight[k] = column < args.width && first + k < args.inputs
                    ? args.weight[(first + k) * args.width + column]
                    : T(0);
}

// What a block has of some edges.
template <class T>
struct StagedEdges {
  alignas(16) T b[kEdges<T>][kInputs];  // w b
  T t[kEdges<T>][kTurns];
  int64_t rows[kEdges<T>];
  int32_t a[kEdges<T>], x[kEdges<T>];
};

// w b of `count` edges whose rows are there, of a part of the inputs. Zeros for edges without nodes.
template <class T>
__device__ __forceinline__ void stage_inputs(const EdgeConvolutionArgs<T>& args, int count, int64_t first,
                                             StagedEdges<T>& edges) {
  for (int k = threadIdx.x; k < kEdges<T> * kInputs; k += kThreads) {
    const int r = k / kInputs, input = k % kInputs;
    const bool there = r < count && edges.a[r] >= 0 && edges.x[r] >= 0 && first + input < args.inputs;
    edges.b[r][input] =
        there ? args.w[edges.rows[r]] * args.b[edges.rows[r] * args.inputs + first + input] : T(0);
  }
}

// Sums over the edges of nodes, by a (convolution and turned nodes) or by x, of kTurns numbers from `turn`
// on. Later passes have no filters, and add to what is there.
template <class T, bool ByA>
__global__ void __launch_bounds__(kThreads)
    nodes_kernel(EdgeConvolutionArgs<T> args, int nodes_of_block, int64_t turn) {
  __shared__ StagedEdges<T> edges;
  const int64_t pieces = (args.width + kColumns - 1) / kColumns;
  const int64_t column = blockIdx.x % pieces * kColumns + threadIdx.x;
  const int64_t start = blockIdx.x / pieces * nodes_of_block;
  const bool inside = column < args.width;
  const int turns = static_cast<int>(args.turns - turn < kTurns ? args.turns - turn : kTurns);
  const int64_t parts = turn ? 1 : (args.inputs + kInputs - 1) / kInputs;
  const int64_t stride = ByA ? args.width : args.a_width();  // of the rows that are summed
  const T* const numbers = ByA ? args.x.x : args.a.x;
  T weight[kInputs];
  if (!turn) load_column(args, 0, column, weight);
  for (int64_t m = start; m < start + nodes_of_block && m < args.targets; ++m) {
    int64_t begin = args.offsets[m], end = args.offsets[m + 1];
    const bool fits = begin >= 0 && begin <= end && end <= args.rows;
    if (!fits) begin = end = 0;
    T sum = fits ? T(0) : not_a_number<T>(), turned[kTurns];
#pragma unroll
    for (int q = 0; q < kTurns; ++q) turned[q] = sum;
    for (int64_t p = begin; p < end; p += kEdges<T>) {
      const int count = static_cast<int>(end - p < kEdges<T> ? end - p : kEdges<T>);
      __syncthreads();
      for (int r = threadIdx.x; r < count; r += kThreads) {
        const int64_t row = row_at(args, m, p + r);
        edges.rows[r] = row;
        const int32_t node = row < 0 ? kWrong : node_at(ByA ? args.x : args.a, row);
        edges.a[r] = ByA ? 0 : node, edges.x[r] = ByA ? node : 0;
        for (int q = 0; q < turns; ++q)
          edges.t[r][q] = node >= 0 ? args.t[row * args.turns + turn + q] : T(0);
      }
      __syncthreads();
      for (int64_t part = 0; part < (parts ? parts : 1); ++part) {
        if (!turn && parts) {
          if (part) __syncthreads();
          stage_inputs(args, count, part * kInputs, edges);
          __syncthreads();
          if (parts > 1) load_column(args, part * kInputs, column, weight);
        }
        if (!inside) continue;
#pragma unroll 4
        for (int r = 0; r < count; ++r) {
          const int32_t node = ByA ? edges.x[r] : edges.a[r];
          const T value = number_at(numbers, node, stride, column);
          if (!turn && parts) sum += product(edges.b[r], weight) * value;
          if (part) continue;
          if (!turn && !parts && node == kWrong) sum = value;
#pragma unroll
          for (int q = 0; q < kTurns; ++q) {
            if (q >= turns) break;
            if constexpr (ByA)
              turned[q] += edges.t[r][q] * value;
            else
              sum += edges.t[r][q] * number_at(numbers, node, stride, (1 + turn + q) * args.width + column);
          }
        }
      }
    }
    if (!inside) continue;
    if constexpr (ByA) {
      T* const to = args.by_a + m * args.a_width() + column;
      if (!turn) *to = sum;
#pragma unroll
      for (int q = 0; q < kTurns; ++q)
        if (q < turns) to[(1 + turn + q) * args.width] = turned[q];
    } else {
      T* const to = args.by_x + m * args.width + column;
      *to = turn ? *to + sum : sum;
    }
  }
}

// By b, w and t of some edges after others: a warp has a share of the columns, a lane a row of W.
template <class T>
__global__ void __launch_bounds__(kThreads) edges_kernel(EdgeConvolutionArgs<T> args) {
  alignas(16) __shared__ T pairs[kEdges<T>][kColumns];
  __shared__ T sums[kWarps][kEdges<T>][kInputs];
  __shared__ T by_w[kEdges<T>];
  __shared__ int32_t a[kEdges<T>], x[kEdges<T>];
  const int lane = lane_index(), warp = threadIdx.x / kWarp;
  const int64_t start = static_cast<int64_t>(blockIdx.x) * kEdges<T>;
  const int count = static_cast<int>(args.rows - start < kEdges<T> ? args.rows - start : kEdges<T>);
  for (int r = threadIdx.x; r < count; r += kThreads) {
    const int32_t of_a = node_at(args.a, start + r), of_x = node_at(args.x, start + r);
    const bool wrong = of_a == kWrong || of_x == kWrong, none = of_a < 0 || of_x < 0;
    a[r] = wrong ? kWrong : none ? kNone : of_a, x[r] = wrong ? kWrong : none ? kNone : of_x;
    by_w[r] = 0;
  }
  __syncthreads();
  for (int64_t input = 0; input < args.inputs; input += kInputs) {
    for (int64_t column = 0; column < args.width; column += kColumns) {
      const int64_t own = column + threadIdx.x, first = column + warp * kWarp;
      T weight[kWarp];
#pragma unroll
      for (int c = 0; c < kWarp; ++c)
        weight[c] = input + lane < args.inputs && first + c < args.width
                        ? args.weight[(input + lane) * args.width + first + c]
                        : T(0);
#pragma unroll 4
      for (int r = 0; r < count; ++r)
        pairs[r][threadIdx.x] = own < args.width ? number_at(args.a.x, a[r], args.a_width(), own) *
                                                       number_at(args.x.x, x[r], args.width, own)
                                                 : T(0);
      __syncwarp();  // a warp reads its own columns alone
      for (int r = 0; r < count; ++r) {
        const T part = product(pairs[r] + warp * kWarp, weight);
        sums[warp][r][lane] = column ? sums[warp][r][lane] + part : part;
      }
      __syncwarp();
    }
    __syncthreads();
    for (int r = warp; r < count; r += kWarps) {
      const int64_t row = start + r, k = input + lane;
      T z = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) z += sums[w][r][lane];
      if (k < args.inputs) args.by_b[row * args.inputs + k] = args.w[row] * z;
      if (!args.by_w) continue;
      const T sum = warp_sum(k < args.inputs ? args.b[row * args.inputs + k] * z : T(0));
      if (lane == 0) by_w[r] += sum;
    }
    __syncthreads();
  }
  for (int r = warp; r < count; r += kWarps) {
    if (args.by_w && lane == 0) args.by_w[start + r] = a[r] == kWrong ? not_a_number<T>() : by_w[r];
    for (int64_t q = 0; q < args.turns; ++q) {
      T sum = 0;
      for (int64_t c = lane; c < args.width; c += kWarp)
        sum += number_at(args.a.x, a[r], args.a_width(), (1 + q) * args.width + c) *
               number_at(args.x.x, x[r], args.width, c);
      sum = warp_sum(sum);
      if (lane == 0) args.by_t[(start + r) * args.turns + q] = a[r] == kWrong ? not_a_number<T>() : sum;
    }
  }
}

// Sums by W of the edges of a share, of a part of the inputs and columns.
template <class T>
__global__ void __launch_bounds__(kThreads)
    weight_kernel(EdgeConvolutionArgs<T> args, int64_t shares, T* sums) {
  __shared__ StagedEdges<T> edges;
  const int64_t pieces = (args.width + kColumns - 1) / kColumns, place = blockIdx.x / shares;
  const int64_t share = blockIdx.x % shares, input = place / pieces * kInputs;
  const int64_t column = place % pieces * kColumns + threadIdx.x;
  const int64_t begin = args.rows * share / shares, end = args.rows * (share + 1) / shares;
  T sum[kInputs];
#pragma unroll
  for (int k = 0; k < kInputs; ++k) sum[k] = 0;
  for (int64_t first = begin; first < end; first += kEdges<T>) {
    const int count = static_cast<int>(end - first < kEdges<T> ? end - first : kEdges<T>);
    __syncthreads();
    for (int r = threadIdx.x; r < count; r += kThreads) {
      edges.rows[r] = first + r;
      edges.a[r] = node_at(args.a, first + r), edges.x[r] = node_at(args.x, first + r);
    }
    __syncthreads();
    stage_inputs(args, count, input, edges);
    __syncthreads();
    if (column >= args.width) continue;
    for (int r = 0; r < count; ++r) {
      const bool none = edges.a[r] == kNone || edges.x[r] == kNone;
      const bool wrong = edges.a[r] == kWrong || edges.x[r] == kWrong;
      const T pair = none && !wrong ? T(0)
                                    : number_at(args.a.x, edges.a[r], args.width, column) *
                                          number_at(args.x.x, edges.x[r], args.width, column);
#pragma unroll
      for (int k = 0; k < kInputs; k += kVectorSize<T>) {
        const Vector<T, kVectorSize<T>> some(edges.b[r] + k);
#pragma unroll
        for (int c = 0; c < kVectorSize<T>; ++c) sum[k + c] += some[c] * pair;
      }
    }
  }
  if (column >= args.width) return;
#pragma unroll
  for (int k = 0; k < kInputs; ++k)
    if (input + k < args.inputs) sums[(share * args.inputs + input + k) * args.width + column] = sum[k];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    weight_sum_kernel(EdgeConvolutionArgs<T> args, int64_t shares, const T* sums) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x,
                size = args.inputs * args.width;
  if (k >= size) return;
  T sum = 0;
  for (int64_t share = 0; share < shares; ++share) sum += sums[share * size + k];
  args.by_weight[k] = sum;
}

// How many shares the sums by W have, each with (K, C) numbers.
template <class T>
int64_t weight_shares(const Gpu& gpu, const EdgeConvolutionArgs<T>& args) {
  return std::clamp<int64_t>(args.rows / (4 * kEdges<T>), 1, 4 * gpu.limits().multiprocessors);
}

template <class T, bool ByA>
void run_nodes(const Gpu& gpu, const EdgeConvolutionArgs<T>& args) {
  // Few nodes have a block each; of many a block has several, for which it reads W once.
  const int64_t full = 8 * gpu.limits().multiprocessors;
  const int of_block = static_cast<int>(std::clamp<int64_t>(args.targets / full, 1, 16));
  const int64_t pieces = (args.width + kColumns - 1) / kColumns;
  const int64_t blocks = (args.targets + of_block - 1) / of_block * pieces;
  for (int64_t turn = 0; turn == 0 || turn < args.turns; turn += kTurns)
    gpu.launch(nodes_kernel<T, ByA>, blocks, kThreads, 0, args, of_block, turn);
}

template <class T>
void run_edges(const Gpu& gpu, const EdgeConvolutionArgs<T>& args) {
  gpu.launch(edges_kernel<T>, (args.rows + kEdges<T> - 1) / kEdges<T>, kThreads, 0, args);
}

template <class T>
void run_weight(const Gpu& gpu, const EdgeConvolutionArgs<T>& args, T* sums) {
  const int64_t shares = weight_shares(gpu, args);
  const int64_t pieces = (args.width + kColumns - 1) / kColumns,
                parts = (args.inputs + kInputs - 1) / kInputs;
  gpu.launch(weight_kernel<T>, shares * pieces * parts, kThreads, 0, args, shares, sums);
  const int64_t size = args.inputs * args.width;
  gpu.launch(weight_sum_kernel<T>, (size + kThreads - 1) / kThreads, kThreads, 0, args, shares,
             static_cast<const T*>(sums));
}

}  // namespace gpu_edge_convolution

}  // namespace mdops
