// Convolutions along edges by the tensor cores, for float32 with its accuracy (common/gpu_tf32.h), if K
// is 32, C 128 and Q 3 or 0. Rows of nodes are loaded from the caches, four numbers a lane, straight into
// operand registers: columns and inputs are permuted to allow that. Warps exchange nothing, and all sums have
// a fixed order.
//
// Tensor cores round sums towards zero: so small products are summed separately, and long sums outside of
// them.
#pragma once

#include <algorithm>

#include "common/gpu_tf32.h"
#include "common/gpu_unroll.h"
#include "common/gpu_warp.h"
#include "edge_convolution/gpu_nodes.h"
#include "gemm/gpu_memory.h"

namespace mdops::gpu_edge_convolution {

constexpr int kTensorInputs = 32, kTensorWidth = 128;
constexpr int kQuarter = 32, kQuarters = kTensorWidth / kQuarter;  // columns of a warp in sums over nodes
constexpr int kNodeThreads = 256, kEdgeThreads = 192, kTensorTurns = 3;
// W in two parts, in the layout of products of warps.
constexpr int kWeightParts = kTensorInputs * kTensorWidth / 2;
constexpr int kWeightBytes = kWeightParts * static_cast<int>(sizeof(uint4));

using Four = Vector<float, 4>;

// A lane's edge of those of a node.
struct OwnEdge {
  int row;       // -1: no edge
  int32_t node;  // kNone, kWrong
  float w;
};

MDOPS_D OwnEdge own_edge(const EdgeConvolutionArgs<float>& args, const NodeRows<float>& nodes, int64_t m,
                         int64_t p, int64_t end) {
  OwnEdge edge{-1, kNone, 0.0f};
  if (p >= end) return edge;
  const int64_t row = row_at(args, m, p);
  edge.node = row < 0 ? kWrong : node_at(nodes, row);
  if (edge.node >= 0) edge.row = static_cast<int>(row), edge.w = args.w[row];
  return edge;
}

// Another lane's edge.
MDOPS_D OwnEdge edge_of(const OwnEdge& own, int lane) {
  return {__shfl_sync(kAllLanes, own.row, lane), __shfl_sync(kAllLanes, own.node, lane),
          __shfl_sync(kAllLanes, own.w, lane)};
}

// Four of an edge's numbers w b.
MDOPS_D Four inputs_of(const EdgeConvolutionArgs<float>& args, const OwnEdge& edge, int first) {
  Four b;
  if (edge.row >= 0) b = Four(args.b + static_cast<int64_t>(edge.row) * kTensorInputs + first);
#pragma unroll
  for (int k = 0; k < 4; ++k) b[k] *= edge.w;
  return b;
}

MDOPS_D void turns_of(const EdgeConvolutionArgs<float>& args, const OwnEdge& edge, float (&t)[kTensorTurns]) {
#pragma unroll
  for (int q = 0; q < kTensorTurns; ++q)
    t[q] = edge.row < 0 ? 0.0f : args.t[static_cast<int64_t>(edge.row) * kTensorTurns + q];
}

// Two numbers of column l / 4 of a product's right factor, in two parts.
MDOPS_D uint4 split_two(float a, float b) {
  uint4 two;
  split_to(two.x, two.z, a), split_to(two.y, two.w, b);
  return two;
}

// Rows l / 4 and l / 4 + 8 of its left factor.
struct SplitRows {
  uint32_t high[4], low[4];

  MDOPS_D SplitRows(float a, float b, float c, float d) {
    split_to(high[0], low[0], a), split_to(high[1], low[1], b);
    split_to(high[2], low[2], c), split_to(high[3], low[3], d);
  }
  MDOPS_D void multiply(float (&large)[4], float (&small)[4], const uint4& b) const {
    multiply_8(small, low, b.x, b.y);
    multiply_8(small, high, b.z, b.w);
    multiply_8(large, high, b.x, b.y);
  }
};

// Sums numbers over lanes `kStep`, `kStep` / 2 .. `kLast` apart. The lane keeps the number whose index, from
// its highest bit on, has the lane's bits at these steps.
template <int kStep, int kLast, int kCount>
MDOPS_D float sum_to_lanes(const float (&x)[kCount]) {
  const bool upper = (lane_index() & kStep) != 0;
  float kept[kCount / 2];
#pragma unroll
  for (int k = 0; k < kCount / 2; ++k) {
    const float other = __shfl_xor_sync(kAllLanes, upper ? x[k] : x[kCount / 2 + k], kStep);
    kept[k] = (upper ? x[kCount / 2 + k] : x[k]) + other;
  }
  if constexpr (kStep == kLast)
    return kept[0];
  else
    return sum_to_lanes<kStep / 2, kLast>(kept);
}

// The edges of a node; none if the offsets are wrong.
struct NodeEdges {
  int64_t begin, end;
  bool fits;

  MDOPS_D NodeEdges(const EdgeConvolutionArgs<float>& args, int64_t m)
      : begin(args.offsets[m]), end(args.offsets[m + 1]) {
    fits = begin >= 0 && begin <= end && end <= args.rows;
    if (!fits) begin = end = 0;
  }
  MDOPS_D float checked(float x) const { return fits ? x : not_a_number<float>(); }
};

// By a. sum_e w_e b_ek x_jc is a product with the edges of a node as its depth; times W and summed over k it
// is the convolution. A block has a node, a warp a quarter of its columns.
template <bool kTurned>
__global__ void __launch_bounds__(kQuarters* kWarp, 4) tensor_a_kernel(EdgeConvolutionArgs<float> args) {
  const int lane = lane_index(), g = lane / 4, t = lane % 4;
  const int first = threadIdx.x / kWarp * kQuarter;
  const int64_t m = blockIdx.x;
  const NodeEdges edges(args, m);
  // For inputs 4 g + 2 i and the next, and every fourth column.
  float large[2][4][4] = {}, small[2][4][4] = {}, turned[kTensorTurns][4] = {};
  for (int64_t p = edges.begin; p < edges.end; p += kWarp) {
    const OwnEdge own = own_edge(args, args.x, m, p + lane, edges.end);
    const int left = static_cast<int>(edges.end - p < kWarp ? edges.end - p : kWarp);
#pragma unroll 1
    for (int step = 0; step < left; step += 8) {
      Four b[2], x[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const OwnEdge edge = edge_of(own, step + t + 4 * h);
        x[h] = numbers_at<4>(args.x.x, edge.node, kTensorWidth, first + 4 * g, true);
        b[h] = inputs_of(args, edge, 4 * g);
        if constexpr (kTurned) {
          float by[kTensorTurns];
          turns_of(args, edge, by);
          unrolled<kTensorTurns, 4>([&](int q, int n) { turned[q][n] += by[q] * x[h][n]; });
        }
      }
      uint4 columns[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) columns[n] = split_two(x[0][n], x[1][n]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const SplitRows rows(b[0][2 * i], b[0][2 * i + 1], b[1][2 * i], b[1][2 * i + 1]);
#pragma unroll
        for (int n = 0; n < 4; ++n) rows.multiply(large[i][n], small[i][n], columns[n]);
      }
    }
  }
  float sums[8] = {};  // of columns 8 t + 4 u + n
#pragma unroll
  for (int u = 0; u < 2; ++u)
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Four weight(args.weight + (4 * g + 2 * i + r) * kTensorWidth + first + 8 * t + 4 * u);
#pragma unroll
        for (int n = 0; n < 4; ++n)
          sums[4 * u + n] += weight[n] * (large[i][n][2 * r + u] + small[i][n][2 * r + u]);
      }
  float* const to = args.by_a + m * args.a_width() + first;
  to[8 * t + g] = edges.checked(sum_to_lanes<16, 4>(sums));
  if constexpr (kTurned) {
#pragma unroll
    for (int q = 0; q < kTensorTurns; ++q)
      to[(1 + q) * kTensorWidth + lane] = edges.checked(sum_to_lanes<2, 1>(turned[q]));
  }
}

// By x. b W of 16 edges of a node is a product, whose rows are multiplied with those of a and summed. A warp
// has a quarter of a node's columns.
template <bool kTurned>
__global__ void __launch_bounds__(kNodeThreads, 2) tensor_x_kernel(EdgeConvolutionArgs<float> args) {
  uint4* const weights = reinterpret_cast<uint4*>(net_memory());
  const int lane = lane_index(), g = lane / 4, t = lane % 4;
  // A lane has columns 16 h + 4 t and three more of each quarter, inputs 8 t and seven more.
  for (int at = threadIdx.x; at < kWeightParts; at += blockDim.x) {
    const int tile = at / kWarp % (kTensorWidth / 8), step = at / kWarp / (kTensorWidth / 8);
    const int column = tile / 2 * 16 + g / 2 * 4 + tile % 2 * 2 + g % 2;
    const float* const from = args.weight + (8 * t + 2 * step) * kTensorWidth + column;
    weights[at] = split_two(from[0], from[kTensorWidth]);
  }
  __syncthreads();
  const int of_block = blockDim.x / kWarp / kQuarters, warp = threadIdx.x / kWarp;
  const int quarter = warp % kQuarters, first = quarter * kQuarter;
  const uint4* const own_weights = weights + quarter * 4 * kWarp + lane;
  for (int64_t m = static_cast<int64_t>(blockIdx.x) * of_block + warp / kQuarters; m < args.targets;
       m += static_cast<int64_t>(gridDim.x) * of_block) {
    const NodeEdges edges(args, m);
    float sums[8] = {};
    for (int64_t p = edges.begin; p < edges.end; p += kWarp) {
      const OwnEdge own = own_edge(args, args.a, m, p + lane, edges.end);
      const int left = static_cast<int>(edges.end - p < kWarp ? edges.end - p : kWarp);
#pragma unroll 1
      for (int step = 0; step < left; step += 16) {
        OwnEdge two[2];
        Four b[2][2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          two[r] = edge_of(own, step + g + 8 * r);
#pragma unroll
          for (int k = 0; k < 2; ++k) b[r][k] = inputs_of(args, two[r], 8 * t + 4 * k);
        }
        float z[4][4] = {}, small[4][4] = {};
#pragma unroll
        for (int depth = 0; depth < 4; ++depth) {
          const int k = depth / 2, at = depth % 2 * 2;
          const SplitRows rows(b[0][k][at], b[1][k][at], b[0][k][at + 1], b[1][k][at + 1]);
#pragma unroll
          for (int n = 0; n < 4; ++n)
            rows.multiply(z[n], small[n], own_weights[(depth * (kTensorWidth / 8) + n) * kWarp]);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          float by[kTensorTurns];
          if constexpr (kTurned) turns_of(args, two[r], by);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int column = first + 16 * h + 4 * t;
            const Four a = numbers_at<4>(args.a.x, two[r].node, args.a_width(), column, true);
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              const int n = 2 * h + c / 2, at = 2 * r + c % 2;
              sums[4 * h + c] += (z[n][at] + small[n][at]) * a[c];
            }
            if constexpr (kTurned) {
#pragma unroll
              for (int q = 0; q < kTensorTurns; ++q) {
                const Four turn = numbers_at<4>(args.a.x, two[r].node, args.a_width(),
                                                (1 + q) * kTensorWidth + column, true);
#pragma unroll
                for (int c = 0; c < 4; ++c) sums[4 * h + c] += by[q] * turn[c];
              }
            }
          }
        }
      }
    }
    args.by_x[m * kTensorWidth + first + g / 4 * 16 + 4 * t + g % 4] =
        edges.checked(sum_to_lanes<16, 4>(sums));
  }
}

// By b, w and t. z of 16 edges is a product with the columns as its depth. A warp has 16 edges; adjacent ones
// mostly belong to one node of a.
template <bool kTurned>
__global__ void __launch_bounds__(kEdgeThreads, 2) tensor_edges_kernel(EdgeConvolutionArgs<float> args) {
  uint4* const weights = reinterpret_cast<uint4*>(net_memory());
  const int lane = lane_index(), g = lane / 4, t = lane % 4;
  // A lane has columns 4 t and three more of each 16, inputs 8 t and seven more.
  for (int at = threadIdx.x; at < kWeightParts; at += blockDim.x) {
    const int tile = at / kWarp % 4, step = at / kWarp / 4;
    const float2 two = read_two(args.weight + (g / 2 * 8 + 2 * tile + g % 2) * kTensorWidth + step / 2 * 16 +
                                4 * t + step % 2 * 2);
    weights[at] = split_two(two.x, two.y);
  }
  __syncthreads();
  const int64_t warps = blockDim.x / kWarp, tiles = (args.rows + 15) / 16;
  for (int64_t tile = blockIdx.x * warps + threadIdx.x / kWarp; tile < tiles; tile += gridDim.x * warps) {
    int32_t a[2] = {kNone, kNone}, x[2] = {kNone, kNone};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = 16 * tile + g + 8 * r;
      if (row < args.rows) stage_ends(args, row, a[r], x[r]);
    }
    float z[4][4] = {}, small[4][4] = {}, turned[2][kTensorTurns] = {};
#pragma unroll 1
    for (int step = 0; step < kTensorWidth / 16; ++step) {
      const int column = 16 * step + 4 * t;
      Four pairs[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const Four of_x = numbers_at<4>(args.x.x, x[r], kTensorWidth, column, true);
        pairs[r] = numbers_at<4>(args.a.x, a[r], args.a_width(), column, true);
#pragma unroll
        for (int c = 0; c < 4; ++c) pairs[r][c] *= of_x[c];
        if constexpr (kTurned) {
#pragma unroll
          for (int q = 0; q < kTensorTurns; ++q) {
            const Four of_a =
                numbers_at<4>(args.a.x, a[r], args.a_width(), (1 + q) * kTensorWidth + column, true);
#pragma unroll
            for (int c = 0; c < 4; ++c) turned[r][q] += of_a[c] * of_x[c];
          }
        }
      }
      float now[4][4] = {};
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const SplitRows rows(pairs[0][2 * k], pairs[1][2 * k], pairs[0][2 * k + 1], pairs[1][2 * k + 1]);
#pragma unroll
        for (int n = 0; n < 4; ++n)
          rows.multiply(now[n], small[n], weights[((2 * step + k) * 4 + n) * kWarp + lane]);
      }
      unrolled<4, 4>([&](int n, int c) { z[n][c] += now[n][c]; });
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t row = 16 * tile + g + 8 * r;
      const bool there = row < args.rows;
      const float w = there ? args.w[row] : 0.0f;
      float by_w = 0.0f;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t at = row * kTensorInputs + 8 * t + 4 * half;
        Four by_b;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const int n = 2 * half + c / 2;
          by_b[c] = z[n][2 * r + c % 2] + small[n][2 * r + c % 2];
        }
        if (there && args.by_w) {
          const Four b(args.b + at);
#pragma unroll
          for (int c = 0; c < 4; ++c) by_w += b[c] * by_b[c];
        }
#pragma unroll
        for (int c = 0; c < 4; ++c) by_b[c] *= w;
        if (there) by_b.store(args.by_b + at);
      }
      if (args.by_w) by_w = quad_sum(by_w);
      if (there && args.by_w && t == 0) args.by_w[row] = by_w;
      if constexpr (kTurned) {
#pragma unroll
        for (int q = 0; q < kTensorTurns; ++q) {
          const float sum = quad_sum(turned[r][q]);
          if (there && t == 0) args.by_t[row * kTensorTurns + q] = sum;
        }
      }
    }
  }
}

inline bool by_tensor_cores(const Gpu& gpu, const EdgeConvolutionArgs<float>& args) {
  return gpu.limits().capability >= 80 && args.inputs == kTensorInputs && args.width == kTensorWidth &&
         (args.turns == kTensorTurns || args.turns == 0) && args.rows < int64_t{1} << 31;
}

// Calls f.operator()<kTurned>().
void with_turns(const EdgeConvolutionArgs<float>& args, const auto& f) {
  args.turns ? f.template operator()<true>() : f.template operator()<false>();
}

inline void run_tensor_a(const Gpu& gpu, const EdgeConvolutionArgs<float>& args) {
  with_turns(args, [&]<bool kTurned>() {
    gpu.launch(tensor_a_kernel<kTurned>, args.targets, kQuarters * kWarp, 0, args);
  });
}

// With few nodes blocks are small, so that all multiprocessors have some; with many, nodes share the weights
// of a block.
inline void run_tensor_x(const Gpu& gpu, const EdgeConvolutionArgs<float>& args) {
  const int64_t chips = gpu.limits().multiprocessors;
  const int threads = args.targets <= chips ? kQuarters * kWarp : kNodeThreads;
  const int64_t blocks = std::min<int64_t>(blocks_for(args.targets, threads / kWarp / kQuarters), 2 * chips);
  with_turns(args, [&]<bool kTurned>() {
    gpu.launch(tensor_x_kernel<kTurned>, blocks, threads, kWeightBytes, args);
  });
}

inline void run_tensor_edges(const Gpu& gpu, const EdgeConvolutionArgs<float>& args) {
  const int64_t chips = gpu.limits().multiprocessors, tiles = blocks_for(args.rows, 16);
  const int threads = tiles <= chips * kEdgeThreads / kWarp ? kEdgeThreads / 2 : kEdgeThreads;
  const int64_t blocks = std::min<int64_t>(blocks_for(tiles, threads / kWarp), 2 * chips);
  with_turns(args, [&]<bool kTurned>() {
    gpu.launch(tensor_edges_kernel<kTurned>, blocks, threads, kWeightBytes, args);
  });
}

}  // namespace mdops::gpu_edge_convolution
