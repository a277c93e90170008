// The kernels of convolutions along edges: a thread has a column, and its part of the filters' matrix in
// registers; the numbers of edges are broadcast from shared memory to all lanes of a warp. No array of edges
// times columns goes to memory, and all sums have a fixed order.
#pragma once

#include <algorithm>
#include <type_traits>

#include "common/gpu.h"
#include "common/rows.h"
#include "common/vector.h"
#include "edge_convolution/gpu_nodes.h"
#include "edge_convolution/gpu_tensor.h"

namespace mdops::gpu_edge_convolution {

constexpr int kColumns = 128, kThreads = kColumns, kWarps = kThreads / kWarp;
constexpr int kInputs = 32;  // rows of W that a thread has at once
constexpr int kTurns = 3;    // sums of turned nodes in one pass
template <class T>
constexpr int kEdges = 128 / sizeof(T);  // in shared memory at once

// A number of a node's row. The load is under a condition alone, so that those of several edges are under
// way.
template <class T>
MDOPS_D T number_at(const T* x, int32_t node, int64_t stride, int64_t column) {
  T value = node == kWrong ? not_a_number<T>() : T(0);
  if (node >= 0) value = x[node * stride + column];
  return value;
}

// sum_k b_k weight_k of this thread's numbers.
template <class T>
MDOPS_D T product(const T* b, const T (&weight)[kInputs]) {
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
MDOPS_D void load_column(const EdgeConvolutionArgs<T>& args, int64_t first, int64_t column,
                         T (&weight)[kInputs]) {
#pragma unroll
  for (int k = 0; k < kInputs; ++k)
    weight[k] = column < args.width && first + k < args.inputs
                    ? args.weight[(first + k) * args.width + column]
                    : T(0);
}

// Columns [first, first + kWarp) of a row of W; zeros beyond.
template <class T>
MDOPS_D void load_row(const EdgeConvolutionArgs<T>& args, int64_t row, int64_t first, T (&weight)[kWarp]) {
#pragma unroll
  for (int c = 0; c < kWarp; ++c)
    weight[c] =
        row < args.inputs && first + c < args.width ? args.weight[row * args.width + first + c] : T(0);
}

// What a block has of some edges: of each the node whose row is read (in a gradient by W those of both ends),
// kNone or kWrong also where the other end is none or wrong.
template <class T>
struct StagedEdges {
  alignas(16) T b[kEdges<T>][kInputs];  // w b
  T t[kEdges<T>][kTurns];
  int64_t rows[kEdges<T>];
  int32_t nodes[kEdges<T>], others[kEdges<T>];
};

// w b of `count` edges whose rows are there, of a part of the inputs. Zeros for edges without nodes.
template <class T>
MDOPS_D void stage_inputs(const EdgeConvolutionArgs<T>& args, int count, int64_t first,
                          StagedEdges<T>& edges) {
#pragma unroll
  for (int k = 0; k < kEdges<T> * kInputs / kThreads; ++k) {
    const int place = k * kThreads + threadIdx.x, r = place / kInputs, input = place % kInputs;
    T value = 0;
    if (r < count && edges.nodes[r] >= 0 && first + input < args.inputs)
      value = args.w[edges.rows[r]] * args.b[edges.rows[r] * args.inputs + first + input];
    edges.b[r][input] = value;
  }
}

// Sums over the edges of nodes, by a (convolution and turned nodes) or by x, of kTurns numbers from `turn`
// on. Later passes have no filters, and add to what is there.
template <class T, bool ByA, bool Filters>
__global__ void __launch_bounds__(kThreads)
    nodes_kernel(EdgeConvolutionArgs<T> args, int nodes_of_block, int64_t turn) {
  __shared__ StagedEdges<T> edges;
  const int64_t pieces = (args.width + kColumns - 1) / kColumns;
  const int64_t column = blockIdx.x % pieces * kColumns + threadIdx.x;
  const int64_t start = blockIdx.x / pieces * nodes_of_block;
  const bool inside = column < args.width;
  const int turns = static_cast<int>(args.turns - turn < kTurns ? args.turns - turn : kTurns);
  const int64_t parts = Filters ? (args.inputs + kInputs - 1) / kInputs : 1;
  const int64_t stride = ByA ? args.width : args.a_width();  // of the rows that are summed
  const T* const numbers = ByA ? args.x.x : args.a.x;
  T weight[kInputs];
  if constexpr (Filters) load_column(args, 0, column, weight);
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
        const int32_t node = row < 0 ? kWrong : node_at(ByA ? args.x : args.a, row);
        edges.rows[r] = row, edges.nodes[r] = node;
#pragma unroll
        for (int q = 0; q < kTurns; ++q) {
          T value = 0;
          if (node >= 0 && q < turns) value = args.t[row * args.turns + turn + q];
          edges.t[r][q] = value;
        }
      }
      __syncthreads();
      for (int64_t part = 0; part < parts; ++part) {
        if constexpr (Filters) {
          if (part) __syncthreads();
          stage_inputs(args, count, part * kInputs, edges);
          __syncthreads();
          if (parts > 1) load_column(args, part * kInputs, column, weight);
        }
        if (!inside) continue;
#pragma unroll 4
        for (int r = 0; r < count; ++r) {
          const int32_t node = edges.nodes[r];
          T value = 0, others[kTurns] = {};
          if (ByA || (Filters || !turn)) value = number_at(numbers, node, stride, column);
          if constexpr (!ByA) {
#pragma unroll
            for (int q = 0; q < kTurns; ++q)
              if (q < turns && !part)
                others[q] = number_at(numbers, node, stride, (1 + turn + q) * args.width + column);
          }
          if constexpr (Filters)
            sum += product(edges.b[r], weight) * value;
          else if (node == kWrong)
            sum = not_a_number<T>();
          if (part) continue;
#pragma unroll
          for (int q = 0; q < kTurns; ++q) {
            if constexpr (ByA)
              turned[q] += edges.t[r][q] * value;
            else
              sum += edges.t[r][q] * others[q];
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

// By b, w and t. A warp multiplies the rows of an edge, `size` columns side by side a lane, and sums those by
// t; then it multiplies its share of the columns of all edges with W, of which a lane has a row. A block has
// many edges, for it reads W once if W is small.
template <class T, int size>
__global__ void __launch_bounds__(kThreads) edges_kernel(EdgeConvolutionArgs<T> args) {
  alignas(16) __shared__ T pairs[kEdges<T>][kColumns];
  __shared__ T sums[kWarps][kEdges<T>][kInputs], by_w[kEdges<T>], by_t[kEdges<T>][kTurns];
  __shared__ int32_t a[kEdges<T>], x[kEdges<T>];
  const int lane = lane_index(), warp = threadIdx.x / kWarp;
  const bool is_small = args.inputs <= kInputs && args.width <= kColumns;
  T weight[kWarp];
  if (is_small) load_row(args, lane, warp * kWarp, weight);
  for (int64_t start = static_cast<int64_t>(blockIdx.x) * kEdges<T>; start < args.rows;
       start += static_cast<int64_t>(gridDim.x) * kEdges<T>) {
    const int count = static_cast<int>(args.rows - start < kEdges<T> ? args.rows - start : kEdges<T>);
    __syncthreads();
    for (int r = threadIdx.x; r < count; r += kThreads) {
      stage_ends(args, start + r, a[r], x[r]);
      by_w[r] = 0;
    }
    __syncthreads();
    for (int64_t turn = 0; turn == 0 || turn < args.turns; turn += kTurns) {
      const int turns = static_cast<int>(args.turns - turn < kTurns ? args.turns - turn : kTurns);
      for (int64_t input = 0; input == 0 || (!turn && input < args.inputs); input += kInputs) {
        for (int64_t column = 0; column == 0 || column < args.width; column += kColumns) {
          if (column || input || turn) __syncthreads();  // all have read the pairs before
#pragma unroll 2
          for (int r = warp; r < count; r += kWarps) {
            T turned[kTurns] = {};
#pragma unroll
            for (int c = 0; c < kColumns; c += kWarp * size) {
              const int64_t own = column + c + lane * size;
              const Vector<T, size> of_x =
                  numbers_at<size>(args.x.x, x[r], args.width, own, own < args.width);
              Vector<T, size> pair = numbers_at<size>(args.a.x, a[r], args.a_width(), own, own < args.width);
#pragma unroll
              for (int q = 0; q < kTurns; ++q) {
                const bool there = own < args.width && q < turns && !input;
                const auto of_a = numbers_at<size>(args.a.x, a[r], args.a_width(),
                                                   (1 + turn + q) * args.width + own, there);
#pragma unroll
                for (int k = 0; k < size; ++k) turned[q] += of_a[k] * of_x[k];
              }
#pragma unroll
              for (int k = 0; k < size; ++k) pair[k] *= of_x[k];
              pair.store(&pairs[r][c + lane * size]);
            }
            if (input) continue;
#pragma unroll
            for (int q = 0; q < kTurns; ++q) {
              const T sum = warp_sum(turned[q]);
              if (lane == 0) by_t[r][q] = column ? by_t[r][q] + sum : sum;
            }
          }
          if (turn || !args.inputs) continue;
          __syncthreads();
          if (!is_small) load_row(args, input + lane, column + warp * kWarp, weight);
#pragma unroll 4
          for (int r = 0; r < count; ++r) {
            const T part = product(pairs[r] + warp * kWarp, weight);
            sums[warp][r][lane] = column ? sums[warp][r][lane] + part : part;
          }
        }
        __syncthreads();
        if (turn || !args.inputs) continue;
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
      }
      __syncthreads();
      for (int k = threadIdx.x; k < count * turns; k += kThreads) {
        const int r = k / turns, q = k % turns;
        args.by_t[(start + r) * args.turns + turn + q] = a[r] == kWrong ? not_a_number<T>() : by_t[r][q];
      }
    }
    if (args.by_w)
      for (int r = threadIdx.x; r < count; r += kThreads)
        args.by_w[start + r] = a[r] == kWrong ? not_a_number<T>() : by_w[r];
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
      stage_ends(args, first + r, edges.nodes[r], edges.others[r]);
    }
    __syncthreads();
    stage_inputs(args, count, input, edges);
    __syncthreads();
    if (column >= args.width) continue;
#pragma unroll 4
    for (int r = 0; r < count; ++r) {
      const T pair = number_at(args.a.x, edges.nodes[r], args.width, column) *
                     number_at(args.x.x, edges.others[r], args.width, column);
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
  if constexpr (std::is_same_v<T, float>)
    if (by_tensor_cores(gpu, args)) return ByA ? run_tensor_a(gpu, args) : run_tensor_x(gpu, args);
  // Few nodes have a block each; of many a block has several, for which it reads W once.
  const int64_t full = 8 * gpu.limits().multiprocessors;
  const int of_block = static_cast<int>(std::clamp<int64_t>(args.targets / full, 1, 4));
  const int64_t pieces = (args.width + kColumns - 1) / kColumns;
  const int64_t blocks = (args.targets + of_block - 1) / of_block * pieces;
  for (int64_t turn = 0; turn == 0 || turn < args.turns; turn += kTurns) {
    if (args.inputs && !turn)
      gpu.launch(nodes_kernel<T, ByA, true>, blocks, kThreads, 0, args, of_block, turn);
    else
      gpu.launch(nodes_kernel<T, ByA, false>, blocks, kThreads, 0, args, of_block, turn);
  }
}

template <class T>
void run_edges(const Gpu& gpu, const EdgeConvolutionArgs<T>& args) {
  if constexpr (std::is_same_v<T, float>)
    if (by_tensor_cores(gpu, args)) return run_tensor_edges(gpu, args);
  const int64_t groups = (args.rows + kEdges<T> - 1) / kEdges<T>;
  const int64_t blocks = std::min<int64_t>(groups, 8 * gpu.limits().multiprocessors);
  with_vector<T>(args.width,
                 [&]<int size>() { gpu.launch(edges_kernel<T, size>, blocks, kThreads, 0, args); });
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

}  // namespace mdops::gpu_edge_convolution
