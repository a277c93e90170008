// A message in one kernel, of float32 with 32 channels and degree 2: from the rows of an edge's neighbour to
// the sums over an atom's edges, and backward. The layers run on Hopper's tensor cores: three products of
// float16's two parts, to float32's accuracy, or one (gemm/gpu_parts.h). Per edge, only the last layer's
// result goes to memory. The backward pass reads it.
//
// A block has 128 edges, each of its two warpgroups 64. A thread has two edges, and of each sixteen of their
// numbers four side by side: its part of a product's sums is its part of the next product's rows. So threads
// exchange only the largest number of a row, by which rows are scaled. A thread's numbers stay in its own
// slots of shared memory, a product's rows in registers. Only the weights are shared: they come through a
// ring (gpu_ring.h, gpu_layers_pack.h). A gate's logits are linear in the rows of m = 0, so their weights are
// W's first columns times G.
//
// The matrices of a warp's 16 edges are computed from their vectors, and are in shared memory without zeros:
// a degree's rows have its columns alone. Edges are sorted by the nodes over which they are summed: forward
// atoms, backward neighbours. A warp sums groups of eight edges, and another kernel adds up the groups' sums
// in order (sum_groups_kernel).
//
// Backward, for the gradient G by an atom's sums:
//
//   g = w T G;  y G^T, times w or summed with T  ->  gradients by T and by w
//   g through the last layer, which has no gate  ->  saved
//   x through the layers, which save f, e = f (1 - f) z and the factor of g_0 in dz_0
//   the last gated layer has g already: it computes dz and slopes right after its product
//   each layer back:  slopes, sums of g e,  ->  dz_0 += slopes G^T  ->  g += dz W^T, ...
//   from the last gated layer on g is in the own slots, and dz is computed as a product's rows
//   K g = h,  h x^T  ->  gradients by T, and so by vectors;  T x g^T  ->  by the mixture;  T^T h  ->  by x
//
// Saved numbers go through the block's own device memory, small enough to stay in the cache.
#pragma once

#include <limits>

#include "common/activation.h"
#include "common/gpu_copy.h"
#include "common/gpu_floats.h"
#include "common/gpu_unroll.h"
#include "common/gpu_wgmma.h"
#include "common/rows.h"
#include "edge_frames/edge_frames.h"
#include "gemm/gpu_memory.h"
#include "so2_layer/gpu_gates.h"
#include "so2_layer/gpu_layers_pack.h"
#include "so2_layer/gpu_multiply_rows.h"
#include "so2_layer/gpu_ring.h"

namespace mdops::gpu_so2 {

constexpr int kLayersThreads = 256, kLayersWarps = kLayersThreads / kWarp, kLayersRows = 128;
constexpr int kLayersGroupRows = kLayersRows / 2;
constexpr int kMiddlePieces = kOwnMiddle / 16, kSidePieces = kOwnSide / 16;
constexpr int kPieces = kMiddlePieces + 2 * kSidePieces;  // of sixteen numbers of a row
constexpr int kScalarPieces = kOwnChannels / 16;
constexpr int kOwnNumbers = 16 * kPieces;
constexpr int kLayersTileBytes = kLayersRows * kOwnNumbers * static_cast<int>(sizeof(float));
constexpr int kLayersAlignment = 1024;  // of shared memory
// Bytes of the ring's slots. More would shrink the L1 cache, which has 60 KB with these.
constexpr int kLayersRingBytes = 48 << 10;
constexpr int kOwnColumns = (kOwnDegrees + 1) * (kOwnDegrees + 1), kOwnRows = 3 * kOwnDegrees + 1;
constexpr int kTurnNumbers = 25;      // entries of an edge's matrix within one degree
constexpr int kTurnBytes = 13 << 10;  // of a block's matrices, on the ring's alignment
constexpr int kVectorBytes = 2 << 10;
constexpr int kOwnMixture = (kOwnDegrees + 1) * (kOwnDegrees + 1) + kOwnDegrees * kOwnDegrees;
constexpr int kOwnNode = kOwnColumns * kOwnChannels;  // numbers of a node
constexpr int kGroupEdges = 8;                        // summed together
static_assert(kTurnBytes >= kLayersRows * kTurnNumbers * static_cast<int>(sizeof(float)) &&
              kVectorBytes >= kLayersRows * 3 * static_cast<int>(sizeof(float)));

// For degree l: its first entry in a matrix, its number of rows and of columns, and the index of its row j.
MDOPS_HD constexpr int turn_begin(int l) {
  return l == 0 ? 0 : l == 1 ? 1 : 10;
}
MDOPS_HD constexpr int turn_rows(int l) {
  return l == 0 ? 1 : 3;
}
MDOPS_HD constexpr int turn_columns(int l) {
  return 2 * l + 1;
}
MDOPS_HD constexpr int turn_row(int l, int j) {
  return l + 2 * j;
}
static_assert(kOwnDegrees == 2 && turn_begin(2) + turn_rows(2) * turn_columns(2) == kTurnNumbers);
MDOPS_HD constexpr int degree_of_row(int r) {
  return r == 0 ? 0 : 2 - r % 2;
}
// The index of the entry of a row and a column of one degree.
MDOPS_HD constexpr int turn_number(int row, int column) {
  const int l = degree_of_row(row);
  return turn_begin(l) + (row - l) / 2 * turn_columns(l) + column - l * l;
}

// The sums of groups of eight edges, and the first sum of each node that begins within a group.
struct GroupSums {
  float *of_groups, *of_begins;  // (groups, D, C), (nodes, D, C)

  static int64_t bytes(int64_t edges, int64_t nodes) {
    return (blocks_for(edges, kGroupEdges) + nodes) * kOwnNode * static_cast<int64_t>(sizeof(float));
  }
  GroupSums(float* memory, int64_t edges)
      : of_groups(memory), of_begins(memory + blocks_for(edges, kGroupEdges) * kOwnNode) {}
};

struct LayersArgs {
  int64_t edges;
  int layers;
  const float *vectors, *mixture, *weight;  // of edges: (E, 3), (E, Q), (E,)
  NodeRows<float> x, grad;                  // of neighbours; of atoms, null forward
  const int32_t* order;                     // of edges, by the nodes to sum over; null: as given
  float* rows;                              // (E, R, C), the last layer's result
  float *by_vectors, *by_mixture, *by_weight;
  GroupSums sums;
  const char* packed;
  const float* unscale;  // of the packed chunks
  float* memory;         // of blocks
  LayersStages stages;

  static MDOPS_HD int64_t kept_pieces(int layers) {
    return kPieces + kSidePieces + (layers - 2) * (4 * kSidePieces + kScalarPieces);
  }
  static MDOPS_HD int64_t memory_of_block(int layers) { return kLayersRows * 16 * kept_pieces(layers); }
};

using LayersRing = StageRing<kLayersWarps, LayersStages>;

MDOPS_HD constexpr int layers_slot_bytes(int parts) {
  return kOwnMiddle * kOwnDepth * 2 * parts;
}
// For vectors and matrices of a block's edges, backward also for their gradients.
MDOPS_HD constexpr int layers_edge_bytes(bool back) {
  return kVectorBytes + (back ? 2 : 1) * kTurnBytes;
}
// A block's shared memory without the ring.
MDOPS_HD constexpr int layers_fixed_bytes(bool back) {
  return kLayersTileBytes + layers_edge_bytes(back) + LayersStream::kMostChunks * sizeof(float) +
         kLayersAlignment;
}
// One warpgroup may be that many stages ahead of the other.
MDOPS_HD constexpr int layers_slots(int parts) {
  return kLayersRingBytes / layers_slot_bytes(parts);
}
constexpr int64_t layers_shared(int parts, bool back) {
  return layers_fixed_bytes(back) + LayersRing::bytes(layers_slots(parts), layers_slot_bytes(parts));
}

// The rows of no node, zeros, and of a wrong node, NaN. They are in memory, so that all lanes read without
// branches.
struct NoNodes {
  alignas(16) float rows[2][kOwnNode] = {};
  constexpr NoNodes() {
    for (float& number : rows[1]) number = std::numeric_limits<float>::quiet_NaN();
  }
};
[[maybe_unused]] static __device__ const NoNodes no_nodes;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kParts, bool kBack>
class LayersTile {
 public:
  // For a block with so many tiles, the first of which has `count` edges from `first` on.
  MDOPS_D LayersTile(const LayersArgs& args, int64_t tiles, int64_t first, int count)
      : args_(args),
        shared_(net_memory() + (-reinterpret_cast<uintptr_t>(net_memory()) & (kLayersAlignment - 1))),
        ring_(shared_ + kLayersTileBytes + layers_edge_bytes(kBack), layers_slots(kParts),
              layers_slot_bytes(kParts), args.packed, args.stages, tiles),
        own_(reinterpret_cast<float4*>(shared_) + threadIdx.x),
        kept_(reinterpret_cast<float4*>(args.memory + blockIdx.x * LayersArgs::memory_of_block(args.layers)) +
              threadIdx.x) {
    const int warp = warp_index();
    group_ = warp / kGroupWarps;
    row_ = 16 * warp + lane_index() / 4;
    find_edges(first, count);
    ask_edges();
    if (threadIdx.x < LayersStream::kMostChunks) units()[threadIdx.x] = args.unscale[threadIdx.x];
    __syncthreads();
  }

  // `count` edges from `first` on; then come those from `next` on.
  MDOPS_D void run(int64_t first, int count, int64_t next, int next_count) {
    group_sums_ = (first + row_ / 16 * 16) / kGroupEdges;
    edge_[0] = next_edge_[0], edge_[1] = next_edge_[1], count_ = count;
    find_edges(next, next_count);
    chunk_ = 0;
    const int gated = args_.layers - 1;
    wait_for_copies<0>();
    __syncwarp();
    // A warpgroup without edges skips the weights: this tile is the block's last.
    if (group_ * kLayersGroupRows >= count) return pass();
    make_turns();
    prefetch_edges();
    if constexpr (kBack)
      turn_gradient();
    else
      rotate();
    // One loop for all layers: more code would not fit into the instruction cache.
#pragma unroll 1
    for (int k = 0; k < (kBack ? 1 + 2 * gated : args_.layers); ++k) {
      const bool is_forward = kBack ? k > 0 && k <= gated : k < gated;
      begins_ = k == 0, turns_ = kBack && k == gated, follows_ = k > gated + 1;
      if constexpr (kBack) {
        if (k == 1) rotate();
        layer_ = k <= gated ? k - 1 : 2 * gated - k;
      }
      float4 factors[kSidePieces][2];
      Product<kScalarPieces> of_slopes;
      if (kBack && k > gated) multiply_slopes(of_slopes);
      middle(is_forward, of_slopes, factors);
      sides(is_forward, factors);
    }
    turn_back();
    __syncwarp();
    if constexpr (kBack) end_gradient();
  }

 private:
  template <int kCount>
  struct Rows {
    uint32_t part[kParts][kCount][4];
  };
  // Sums of the tensor cores, and their factor for each of the thread's rows.
  template <int kPieces>
  struct Product {
    float sum[8 * kPieces], unit[2];

    MDOPS_D float4 operator()(int piece, int h) const {
      const float* const own = sum + 8 * piece + 2 * h;
      return {own[0] * unit[h], own[1] * unit[h], own[4] * unit[h], own[5] * unit[h]};
    }
  };

  static __device__ constexpr int place(int piece, int h) { return (2 * piece + h) * kLayersThreads; }
  MDOPS_D float4& own(int piece, int h) const { return own_[place(piece, h)]; }
  // In the block's own device memory: the gradient, the slopes of the next layer, and then what each layer
  // saves: e of m = 0, -1 and 1, the factors f, and those of g_0.
  MDOPS_D float4& grad(int piece, int h) const { return kept_[place(piece, h)]; }
  MDOPS_D float4& slope(int k, int h) const { return kept_[place(kPieces + k, h)]; }
  MDOPS_D float4& kept(int piece, int h) const {
    return kept_[place(kPieces + kSidePieces + layer_ * (4 * kSidePieces + kScalarPieces) + piece, h)];
  }
  static constexpr int kFactors = 3 * kSidePieces, kScalars = 4 * kSidePieces;
  static constexpr int kAtOnce = 2;  // pieces read together

  // a (1 - f), by one operation per number.
  static MDOPS_D float4 rest(const float4& a, const float4& f) { return a - a * f; }
  static MDOPS_D float4 sigmoids(const float4& a) {
    return {sigmoid_fast(a.x), sigmoid_fast(a.y), sigmoid_fast(a.z), sigmoid_fast(a.w)};
  }
  static MDOPS_D void each(int begin, int end, const auto& f) {
#pragma unroll
    for (int piece = begin; piece < end; ++piece)
#pragma unroll
      for (int h = 0; h < 2; ++h) f(piece, h);
  }

  // The thread's edges among `count` from `first` on.
  MDOPS_D void find_edges(int64_t first, int count) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      int64_t e = row_ + 8 * h < count ? first + row_ + 8 * h : -1;
      if (args_.order && e >= 0) e = args_.order[e];
      next_edge_[h] = e < args_.edges ? static_cast<int>(e) : -1;
    }
  }
  // Without indexing edge_, for which the compiler would keep the whole object in memory.
  MDOPS_D int edge(int h) const { return h == 0 ? edge_[0] : edge_[1]; }
  // The warp's 16 edges, one per lane; lanes from 16 on repeat them.
  static MDOPS_D int edge_of_lane(const int (&of)[2]) {
    const int from = lane_index() % 8 * 4;
    const int first = __shfl_sync(kAllLanes, of[0], from), second = __shfl_sync(kAllLanes, of[1], from);
    return lane_index() / 8 % 2 ? second : first;
  }
  // Loads the vectors of the next edges, and backward also their rows, to the own slots.
  MDOPS_D void ask_edges() const {
    if (const int e = edge_of_lane(next_edge_); lane_index() < 16)
#pragma unroll
      for (int a = 0; a < 3; ++a)
        copy_to_shared<4>(vector() + a, args_.vectors + 3 * static_cast<int64_t>(max(e, 0)) + a, e >= 0);
    if constexpr (kBack)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int e = next_edge_[h];
        const float* const from = row_of(max(e, 0));
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece)
          copy_to_shared<16>(&own(piece, h), from + 16 * piece, e >= 0);
      }
    commit_copies();
  }
  // Prefetches the next edges' data to the L2 cache.
  MDOPS_D void prefetch_edges() const {
#ifdef __CUDA_ARCH__
    const int64_t e = edge_of_lane(next_edge_);
    if (e < 0) return;
    const bool upper = lane_index() >= 16;
    const auto prefetch = [](const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); };
    const float* const mixture = args_.mixture + e * kOwnMixture;
    prefetch(upper ? mixture + kOwnMixture - 1 : mixture);
    if constexpr (kBack) {
      prefetch(upper ? args_.vectors + 3 * e : args_.weight + e);
      prefetch((upper ? args_.x.index : args_.grad.index) + e);
      // Lanes issue this one after the other; so it is used for rows only.
      if (!upper)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(args_.rows + e * kOwnNumbers),
                     "n"(kOwnNumbers * static_cast<int>(sizeof(float))));
    }
#endif
  }
  // The thread's part of an edge's rows.
  MDOPS_D float* row_of(int64_t e) const { return args_.rows + e * kOwnNumbers + 4 * (lane_index() % 4); }
  MDOPS_D void answer(int piece, int h, const float4& x) const {
    if (edge(h) >= 0) __stcs(reinterpret_cast<float4*>(row_of(edge(h)) + 16 * piece), x);
  }
  // The vector of a lane's edge, as in edge_of_lane.
  MDOPS_D float* vector() const {
    return reinterpret_cast<float*>(shared_ + kLayersTileBytes) + (row_ / 16 * 16 + lane_index() % 16) * 3;
  }
  // The same, but some other vector without a node, so that nothing is divided by zero.
  MDOPS_D void read_vector(float (&found)[3], int e) const {
    const bool is_there = e >= 0 && !args_.x.is_none(e);
#pragma unroll
    for (int a = 0; a < 3; ++a) found[a] = is_there ? vector()[a] : a == 2;
  }
  // Computes the matrices of the warp's 16 edges, one per lane.
  MDOPS_D void make_turns() const {
    if (const int e = edge_of_lane(edge_); lane_index() < 16) {
      float own[3];
      read_vector(own, e);
      const Direction<float> direction(own);
      float* const to = turns(0) + lane_index() * kTurnNumbers;
      each_frame_number<kOwnDegrees, float>(
          direction.n[0], direction.n[1], direction.n[2], direction.up(), 1,
          [&](int row, int column, float number) { to[turn_number(row, column)] = number; });
    }
    __syncwarp();
  }
  // The gradients by the vectors of the warp's 16 edges; loads the next ones. An edge's matrix for degree 1
  // holds the two axes across it. A lane has one of them, and the derivative along it.
  MDOPS_D void end_gradient() const {
    const int e = edge_of_lane(edge_), lane = lane_index();
    float own[3];
    read_vector(own, e);
    __syncwarp();
    ask_edges();
    using Number = Along<float>;
    const Direction<float> direction(own);
    const float* const axis =
        turns(0) + lane % 16 * kTurnNumbers + turn_begin(1) + (1 + lane / 16) * turn_columns(1);
    const float along[3] = {-axis[2], -axis[0], axis[1]};  // in the order of m there: -y, z, -x
    const float* const from = turns(1) + lane % 16 * kTurnNumbers;
    float by_axis = 0;
    each_frame_number<kOwnDegrees, float>(Number(direction.n[0], along[0]), Number(direction.n[1], along[1]),
                                          Number(direction.n[2], along[2]), direction.up(), 1,
                                          [&](int row, int column, const Number& number) {
                                            by_axis += from[turn_number(row, column)] * number.along;
                                          });
    by_axis /= direction.length;
#pragma unroll
    for (int a = 0; a < 3; ++a) {
      const float grad = by_axis * along[a], both = grad + __shfl_xor_sync(kAllLanes, grad, 16);
      if (lane < 16 && e >= 0) args_.by_vectors[3 * static_cast<int64_t>(e) + a] = both;
    }
    __syncwarp();
  }
  // The matrices of the warp's 16 edges (0), one after the other, or their gradients (1).
  MDOPS_D float* turns(int of) const {
    return reinterpret_cast<float*>(shared_ + kLayersTileBytes + kVectorBytes + of * kTurnBytes) +
           row_ / 16 * (16 * kTurnNumbers);
  }
  MDOPS_D float* turn(int of, int h) const { return turns(of) + (lane_index() / 4 + 8 * h) * kTurnNumbers; }

  // The node of an edge: -1 without one, kWrong for an invalid one.
  static constexpr int kWrong = -2;
  static MDOPS_D int node_of(const NodeRows<float>& rows, int e) {
    return e < 0 ? -1 : rows.is_right(e) ? max(rows.index[e], -1) : kWrong;
  }
  // The same for both edges, loaded at once.
  class Nodes {
   public:
    MDOPS_D Nodes(const NodeRows<float>& rows, const int (&edges)[2])
        : first_(node_of(rows, edges[0])), second_(node_of(rows, edges[1])) {}
    MDOPS_D int operator()(int h) const { return h == 0 ? first_ : second_; }

   private:
    const int first_, second_;
  };

  // The thread's part of a node's rows, from column kFirst to kEnd. Without a node they are zeros; for a
  // wrong one, NaN.
  template <int kFirst = 0, int kEnd = kOwnColumns>
  struct Columns {
    float4 x[kEnd - kFirst][2];

    MDOPS_D Columns(const NodeRows<float>& rows, int node) {
      const float* const row =
          node < 0 ? no_nodes.rows[node == kWrong] : rows.x + static_cast<int64_t>(node) * kOwnNode;
      const float4* const at =
          reinterpret_cast<const float4*>(row + kFirst * kOwnChannels) + lane_index() % 4;
#pragma unroll
      for (int d = 0; d < kEnd - kFirst; ++d)
        x[d][0] = __ldg(at + d * (kOwnChannels / 4)), x[d][1] = __ldg(at + d * (kOwnChannels / 4) + 4);
    }
    MDOPS_D const float4 (&operator[](int d) const)[2] { return x[d - kFirst]; }
  };
  // Calls f for all degrees, as constants.
  static MDOPS_D void each_degree(const auto& f) {
    static_assert(kOwnDegrees == 2);
    f.template operator()<2>();
    f.template operator()<1>();
    f.template operator()<0>();
  }
  // Calls f(entry of the matrix, column, row) for all entries of degree l.
  template <int l, class F>
  static MDOPS_D void each_turned(const F& f) {
    unrolled<turn_rows(l), turn_columns(l)>(
        [&](int j, int c) { f(turn_begin(l) + j * turn_columns(l) + c, l * l + c, turn_row(l, j)); });
  }
  // Calls f(row) for the rows of degree l.
  template <int l, class F>
  static MDOPS_D void each_row(const F& f) {
#pragma unroll
    for (int j = 0; j < turn_rows(l); ++j) f(turn_row(l, j));
  }

  static MDOPS_D void add(float4 (&sum)[2], float t, const float4 (&x)[2]) {
    sum[0] += t * x[0], sum[1] += t * x[1];
  }
  static MDOPS_D float dot(const float4 (&a)[2], const float4 (&b)[2]) {
    return a[0].x * b[0].x + a[0].y * b[0].y + a[0].z * b[0].z + a[0].w * b[0].w + a[1].x * b[1].x +
           a[1].y * b[1].y + a[1].z * b[1].z + a[1].w * b[1].w;
  }
  // Calls f(index of K[k, o], row k, row o) for an edge's mixture (order_mix/order_mix.h).
  static MDOPS_D void each_mixed(const auto& f) {
    constexpr int kOfMiddle = kOwnDegrees + 1;
    unrolled<kOfMiddle, kOfMiddle>([&](int k, int o) { f(k * kOfMiddle + o, k, o); });
    unrolled<2, kOwnDegrees, kOwnDegrees>([&](int sign, int k, int o) {
      const int first = kOfMiddle + sign * kOwnDegrees;
      f(kOfMiddle * kOfMiddle + k * kOwnDegrees + o, first + k, first + o);
    });
  }
  MDOPS_D void read_mixture(float (&mixture)[kOwnMixture], int e) const {
#pragma unroll
    for (int q = 0; q < kOwnMixture; ++q)
      mixture[q] = e < 0 ? 0.0f : __ldg(args_.mixture + static_cast<int64_t>(e) * kOwnMixture + q);
  }

  // Rotates the neighbours' rows into the edges' frames and mixes them, to the own slots.
  MDOPS_D void rotate() const {
    const Nodes nodes(args_.x, edge_);
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      const int e = edge(h);
      const Columns<> columns(args_.x, nodes(h));
      float mixture[kOwnMixture];
      read_mixture(mixture, e);
      float4 mixed[kOwnRows][2] = {};
      const float* const t = turn(0, h);
      each_degree([&]<int l>() {
        float4 sums[kOwnRows][2];
        turn_rows_of<l>(t, columns, sums);
        each_mixed([&](int q, int k, int o) {
          if (degree_of_row(k) == l) add(mixed[o], mixture[q], sums[k]);
        });
      });
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) own(2 * r, h) = mixed[r][0], own(2 * r + 1, h) = mixed[r][1];
    }
    if constexpr (!kBack) ask_edges();
  }
  // Rows of degree l in an edge's frame.
  template <int l, class C>
  static MDOPS_D void turn_rows_of(const float* t, const C& columns, float4 (&sums)[kOwnRows][2]) {
    each_row<l>([&](int r) { sums[r][0] = sums[r][1] = {0.0f, 0.0f, 0.0f, 0.0f}; });
    each_turned<l>([&](int k, int d, int r) { add(sums[r], t[k], columns[d]); });
  }

  // Sums kCount numbers over lanes that differ in the bits from kFirst to kLast. Each lane gets a share of
  // the sums: its highest bit selects the half, the next bit the quarter, and so on.
  template <int kFirst, int kLast, int kCount>
  static MDOPS_D void share_sums(float (&numbers)[kCount]) {
    static_assert(kCount % (2 * kFirst / kLast) == 0);
#pragma unroll
    for (int step = kFirst, count = kCount / 2; step >= kLast; step /= 2, count /= 2) {
      const bool upper = lane_index() & step;
#pragma unroll
      for (int k = 0; k < kCount / 2; ++k)
        if (k < count) {
          const float sent = upper ? numbers[k] : numbers[k + count];
          numbers[k] = (upper ? numbers[k + count] : numbers[k]) + __shfl_xor_sync(kAllLanes, sent, step);
        }
    }
  }

  // Replaces edges' rows by their gradients; computes the first part of those by matrices, and those by
  // weights.
  MDOPS_D void turn_gradient() const {
    const Nodes nodes(args_.grad, edge_);
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      const int e = edge(h), quarter = lane_index() % 4;
      const Columns<> columns(args_.grad, nodes(h));
      const float weight = weight_of(e, nodes(h));
      const float* const t = turn(0, h);
      float by_turn[4 * kQuarter] = {};
      each_degree([&]<int l>() {
        float4 y[kOwnRows][2], g[kOwnRows][2];
        each_row<l>([&](int r) { y[r][0] = own(2 * r, h), y[r][1] = own(2 * r + 1, h); });
        turn_rows_of<l>(t, columns, g);
        each_turned<l>([&](int k, int d, int r) { by_turn[k] = dot(y[r], columns[d]); });
        each_row<l>([&](int r) { own(2 * r, h) = weight * g[r][0], own(2 * r + 1, h) = weight * g[r][1]; });
      });
      share_sums<2, 1>(by_turn);
      // Its sum with T is the gradient by the weight.
      float by_weight = 0;
      float* const to = turn(1, h) + kQuarter * quarter;
#pragma unroll
      for (int k = 0; k < kQuarter; ++k)
        if (kQuarter * quarter + k < kTurnNumbers) {
          by_weight += t[kQuarter * quarter + k] * by_turn[k];
          to[k] = weight * by_turn[k];
        }
      by_weight = quad_sum(by_weight);
      if (e >= 0 && quarter == 0) args_.by_weight[e] = by_weight;
    }
  }
  static constexpr int kQuarter = (kTurnNumbers + 3) / 4;  // a lane's entries of a matrix

  // A group of eight edges, sorted by node, and where the sums of each node go. A lane's three upper bits
  // tell its edge. The sums of a single node go by shuffles. Those of several nodes go through the own slots
  // of these edges' rows, so that a lane has a channel.
  class Group {
   public:
    MDOPS_D Group(const GroupSums& to, int64_t group, bool is_there, int node, float4* memory)
        : to_(to), group_(group), node_(node), is_there_(is_there), memory_(memory) {
      const int lane = lane_index();
      const int before = __shfl_up_sync(kAllLanes, node, 4);
      others_ = __ballot_sync(kAllLanes, lane >= 4 && lane % 4 == 0 && node != before);
    }
    // Sums the eight edges' numbers in kCount columns from `first` on.
    template <int kCount>
    MDOPS_D void add_up(int first, const float4 (&x)[kCount][2]) const {
      // All lanes run the shuffles, needed or not: with a branch around them the compiler loses its uniform
      // registers.
      by_lanes(first, x);
      if (others_) by_places(first, x);
    }

   private:
    template <int kCount>
    MDOPS_D void by_lanes(int first, const float4 (&x)[kCount][2]) const {
      float numbers[8 * kCount];
      unrolled<kCount, 2>([&](int c, int h) {
        float* const of = numbers + 4 * h * kCount + c;
        of[0] = x[c][h].x, of[kCount] = x[c][h].y, of[2 * kCount] = x[c][h].z, of[3 * kCount] = x[c][h].w;
      });
      share_sums<16, 4>(numbers);
      const int lane = lane_index(), channel = lane / 16 * 16 + lane % 4 * 4 + lane / 4 % 4;
      float* const to = to_.of_groups + group_ * kOwnNode + first * kOwnChannels + channel;
      if (is_there_ && !others_)
#pragma unroll
        for (int c = 0; c < kCount; ++c) __stcs(to + c * kOwnChannels, numbers[c]);
    }
    template <int kCount>
    MDOPS_D void by_places(int first, const float4 (&x)[kCount][2]) const {
      constexpr int kStep = place(1, 0);  // from one piece to the next
      static_assert(2 * kCount <= kPieces);
      __syncwarp();  // the old numbers have been read
#pragma unroll
      for (int c = 0; c < kCount; ++c)
        memory_[2 * c * kStep] = x[c][0], memory_[(2 * c + 1) * kStep] = x[c][1];
      __syncwarp();
      const int lane = lane_index(), half = lane / 16;
      const float* const from = reinterpret_cast<const float*>(memory_ - lane + half * kStep) + lane % 16;
      float* const to = to_.of_groups + group_ * kOwnNode + first * kOwnChannels + lane;
#pragma unroll 1
      for (int c = 0; c < kCount; ++c) {
        float sum = 0, *at = is_there_ ? to + c * kOwnChannels : nullptr;
#pragma unroll 1
        for (int e = 0; e < kGroupEdges; ++e) {
          if (others_ >> 4 * e & 1) {
            if (at) *at = sum;
            const int node = __shfl_sync(kAllLanes, node_, 4 * e);
            at = node < 0 ? nullptr
                          : to_.of_begins +
                                (static_cast<int64_t>(node) * kOwnColumns + first + c) * kOwnChannels + lane;
            sum = 0;
          }
          sum += from[8 * kStep * c + 16 * e];
        }
        if (at) *at = sum;
      }
    }

    const GroupSums& to_;
    const int64_t group_;
    const int node_;
    const bool is_there_;
    float4* const memory_;  // the lane's
    unsigned others_;       // lanes where another node begins
  };
  // The group of the thread's edge h, which belongs to this node.
  MDOPS_D Group group_of(int h, int node) const {
    return {args_.sums, group_sums_ + h, row_ / 16 * 16 + 8 * h < count_, max(node, -1), &own(0, h)};
  }

  // NaN for a wrong atom.
  MDOPS_D float weight_of(int e, int atom) const {
    if (e < 0) return 0.0f;
    return atom == kWrong ? not_a_number<float>() : __ldg(args_.weight + e);
  }

  // Rotates the rows in the own slots back and sums them: forward the result, with weights; backward the
  // gradient by mixed rows, with the gradients by matrices and mixtures.
  MDOPS_D void turn_back() const {
    const Nodes nodes(kBack ? args_.x : args_.grad, edge_);
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      const int e = edge(h);
      const Group group = group_of(h, nodes(h));
      float4 r[kOwnRows][2];
      const float weight = kBack ? 1.0f : weight_of(e, nodes(h));
#pragma unroll
      for (int k = 0; k < kOwnRows; ++k)
        r[k][0] = weight * own(2 * k, h), r[k][1] = weight * own(2 * k + 1, h);
      const float* const turned = turn(0, h);
      if constexpr (kBack) {
        float mixture[kOwnMixture], by_mixture[16] = {};
        read_mixture(mixture, e);
        float4 rows[kOwnRows][2];
        {
          const Columns<4> columns(args_.x, nodes(h));
          end_degree<2>(columns, h, r, mixture, rows, by_mixture);
        }
        add_up_turned<2>(turned, rows, group);
        const Columns<0, 4> columns(args_.x, nodes(h));
        end_degree<1>(columns, h, r, mixture, rows, by_mixture);
        add_up_turned<1>(turned, rows, group);
        end_degree<0>(columns, h, r, mixture, rows, by_mixture);
        add_up_turned<0>(turned, rows, group);
        share_sums<2, 1>(by_mixture);
        const int first = 4 * (lane_index() % 4);
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (e >= 0 && first + k < kOwnMixture)
            args_.by_mixture[static_cast<int64_t>(e) * kOwnMixture + first + k] = by_mixture[k];
      } else {
        each_degree([&]<int l>() { add_up_turned<l>(turned, r, group); });
      }
    }
  }
  // For degree l: the gradient by its rows, from that by mixed rows r, and the gradients by mixtures and
  // matrices.
  template <int l, class C>
  MDOPS_D void end_degree(const C& columns, int h, const float4 (&r)[kOwnRows][2],
                          const float (&mixture)[kOwnMixture], float4 (&rows)[kOwnRows][2],
                          float (&by_mixture)[16]) const {
    turn_rows_of<l>(turn(0, h), columns, rows);
    each_mixed([&](int q, int k, int o) {
      if (degree_of_row(k) == l) by_mixture[q] += dot(rows[k], r[o]);
    });
    each_row<l>([&](int k) { rows[k][0] = rows[k][1] = {0.0f, 0.0f, 0.0f, 0.0f}; });
    each_mixed([&](int q, int k, int o) {
      if (degree_of_row(k) == l) add(rows[k], mixture[q], r[o]);
    });
    constexpr int kNumbers = turn_rows(l) * turn_columns(l), kShare = (kNumbers + 3) / 4;
    float by_turn[4 * kShare] = {};
    each_turned<l>([&](int k, int d, int row) { by_turn[k - turn_begin(l)] = dot(rows[row], columns[d]); });
    share_sums<2, 1>(by_turn);
    const int first = kShare * (lane_index() % 4);
    float* const to = turn(1, h) + turn_begin(l) + first;
#pragma unroll
    for (int k = 0; k < kShare; ++k)
      if (first + k < kNumbers) to[k] += by_turn[k];
  }
  // Rotates rows of degree l back, and sums them.
  template <int l>
  static MDOPS_D void add_up_turned(const float* t, const float4 (&rows)[kOwnRows][2], const Group& group) {
    float4 back[turn_columns(l)][2] = {};
    each_turned<l>([&](int k, int d, int r) { add(back[d - l * l], t[k], rows[r]); });
    group.add_up(l * l, back);
  }

  // Scales a product's rows f(piece, h) to one size and splits them into parts.
  template <int kCount, class F>
  MDOPS_D void make_rows(Rows<kCount>& rows, const F& f) {
    float4 x[kCount][2];
    each(0, kCount, [&](int s, int h) { x[s][h] = f(s, h); });
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float largest = 0;
#pragma unroll
      for (int s = 0; s < kCount; ++s)
        largest = fmaxf(largest, fmaxf(fmaxf(fabsf(x[s][h].x), fabsf(x[s][h].y)),
                                       fmaxf(fabsf(x[s][h].z), fabsf(x[s][h].w))));
      const float scale = scale_for(quad_largest(largest));
      by_row_[h] = inverse_power(scale);
#pragma unroll
      for (int s = 0; s < kCount; ++s) {
        uint32_t first[kParts], second[kParts];
        split(scale * x[s][h].x, scale * x[s][h].y, first);
        split(scale * x[s][h].z, scale * x[s][h].w, second);
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          rows.part[part][s][h] = first[part], rows.part[part][s][2 + h] = second[part];
      }
    }
  }

  // sum (+)= sixteen numbers of the rows' depth times a stage's.
  template <int kSign = 1, int kSize, int kCount>
  MDOPS_D void add_products(float (&sum)[kSize], const Rows<kCount>& rows, int piece, const char* stage,
                            int step, bool adds) const {
    const uint64_t b = (kParts == 2 ? matrix_of_rows<128>(stage) : matrix_of_rows<64>(stage)) + 2 * step;
    if constexpr (kParts == 2) {
      multiply_rows<kSign>(sum, rows.part[1][piece], b, adds);
      multiply_rows<kSign>(sum, rows.part[0][piece], b + 4, 1);
    }
    multiply_rows<kSign>(sum, rows.part[0][piece], b, kParts == 2 || adds);
  }

  // Calls f(stage, its index) for kStages stages. The products of one run while those of the next are
  // issued.
  template <int kStages, class F>
  MDOPS_D void each_stage(const F& f) {
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
      const char* const at = ring_.next();
      begin_products();
      f(at, stage);
      commit_products();
      if (stage > 0) {
        wait_for_products<1>();
        ring_.let_go();
      }
    }
    wait_for_products<0>();
    ring_.let_go();
  }
  // Skips all stages of a tile.
  MDOPS_D void pass() {
#pragma unroll 1
    for (int stage = 0; stage < args_.stages.count; ++stage) ring_.next(), ring_.let_go();
  }

  // Multiplies rows by the stream's next chunk.
  template <int kColumns, int kCount>
  MDOPS_D void multiply(Product<kColumns>& z, const Rows<kCount>& rows) {
    const float unit = next_unit();
    each_stage<kCount / 2>([&](const char* at, int stage) {
#pragma unroll
      for (int step = 0; step < 2; ++step)
        add_products(z.sum, rows, 2 * stage + step, at, step, stage + step > 0);
    });
    finish(z, unit);
  }

  // The same for both signs: a U - b V and a V + b U for rows a and b.
  MDOPS_D void multiply_sides(Product<kSidePieces>& negative, Product<kSidePieces>& positive,
                              const Rows<2 * kSidePieces>& rows) {
    const float unit = next_unit();
    each_stage<kSidePieces>([&](const char* at, int stage) {
      constexpr int kOfEach = kSidePieces / 2;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int own = 2 * (stage % kOfEach) + step, other = own + kSidePieces;
        if (stage < kOfEach) {
          add_products(negative.sum, rows, own, at, step, stage + step > 0);
          add_products(positive.sum, rows, other, at, step, stage + step > 0);
        } else {
          add_products<-1>(negative.sum, rows, other, at, step, true);
          add_products(positive.sum, rows, own, at, step, true);
        }
      }
    });
    finish(negative, unit);
    finish(positive, unit);
  }
  // The inverse scales of chunks, after the ring.
  MDOPS_D float* units() const {
    return reinterpret_cast<float*>(shared_ + kLayersTileBytes + layers_edge_bytes(kBack) +
                                    LayersRing::bytes(layers_slots(kParts), layers_slot_bytes(kParts)));
  }
  MDOPS_D float next_unit() { return units()[chunk_++]; }
  template <int kColumns>
  MDOPS_D void finish(Product<kColumns>& z, float unit) const {
    fence_operands(z.sum);
#pragma unroll
    for (int h = 0; h < 2; ++h) z.unit[h] = by_row_[h] * unit;
  }

  // x + z of a layer without a gate, or the gradient by a layer's rows: g + dz times the transposed weights,
  // for kCount pieces z(piece, h) from `begin` on. All saved numbers are read first.
  template <int kCount, class Z>
  MDOPS_D void end(int begin, const Z& z) const {
    // The gradient has the same index in the block's own memory.
    const float4* const from = kBack && !begins_ && !follows_ ? kept_ : own_;
    float4* const to = kBack && begins_ ? kept_ : own_;
    float4 x[kCount][2];
    each(0, kCount, [&](int k, int h) { x[k][h] = from[place(begin + k, h)]; });
    each(0, kCount, [&](int k, int h) {
      const float4 found = x[k][h] + z(k, h);
      if constexpr (!kBack) answer(begin + k, h, found);
      to[place(begin + k, h)] = found;
    });
  }

  // A product's rows: the own slots, or for a layer on the way back, where these hold g, dz.
  MDOPS_D float4 row(int piece, int h, int factor) const {
    const float4 x = own(piece, h);
    if constexpr (kBack)
      if (follows_) return x * kept(factor, h);
    return x;
  }

  // The product of the rows of m = 0, and its epilogue. It also gives the factors of a layer with a gate, and
  // in the last gated layer, on the way back, a part of the slopes. `of_slopes`: a part of dz_0, on the way
  // back.
  MDOPS_D void middle(bool is_forward, const Product<kScalarPieces>& of_slopes,
                      float4 (&factors)[kSidePieces][2]) {
    Product<kMiddlePieces> z;
    Product<kSidePieces> logits;
    {
      Rows<kMiddlePieces> rows;
      make_rows(rows, [&](int s, int h) {
        const float4 x = row(s, h, s < kScalarPieces ? kScalars + s : kFactors + s - kScalarPieces);
        return kBack && !begins_ && !is_forward && s < kScalarPieces ? x + of_slopes(s, h) : x;
      });
      multiply(z, rows);
      if (is_forward) multiply(logits, rows);
    }
    if (!is_forward) return end<kMiddlePieces>(0, z);
    // Branches enclose groups of pieces, so that sigmoids do not wait for each other.
    static_assert(kScalarPieces == kAtOnce);
    float4 g[kAtOnce][2], x[kAtOnce][2], f[kAtOnce][2];
    if (turns_) each(0, kScalarPieces, [&](int s, int h) { g[s][h] = grad(s, h); });
    each(0, kScalarPieces, [&](int s, int h) { x[s][h] = z(s, h), f[s][h] = sigmoids(x[s][h]); });
    // The derivative of x sigmoid(x).
    const auto slope_of = [](const float4& x, const float4& f) { return f + rest(x * f, f); };
    if (kBack && turns_)
      each(0, kScalarPieces, [&](int s, int h) { own(s, h) = g[s][h] * slope_of(x[s][h], f[s][h]); });
    else
      each(0, kScalarPieces, [&](int s, int h) {
        own(s, h) += x[s][h] * f[s][h];
        if constexpr (kBack) kept(kScalars + s, h) = slope_of(x[s][h], f[s][h]);
      });
#pragma unroll
    for (int begin = 0; begin < kSidePieces; begin += kAtOnce) {
      if (turns_) each(0, kAtOnce, [&](int k, int h) { g[k][h] = grad(kScalarPieces + begin + k, h); });
      each(begin, begin + kAtOnce, [&](int k, int h) {
        factors[k][h] = sigmoids(logits(k, h)), x[k - begin][h] = factors[k][h] * z(kScalarPieces + k, h);
      });
      if (kBack && turns_)
        each(begin, begin + kAtOnce, [&](int k, int h) {
          const float4 &of = g[k - begin][h], &more = x[k - begin][h];
          slope(k, h) = of * rest(more, factors[k][h]);
          own(kScalarPieces + k, h) = of * factors[k][h];
        });
      else
        each(begin, begin + kAtOnce, [&](int k, int h) {
          const float4& more = x[k - begin][h];
          own(kScalarPieces + k, h) += more;
          if constexpr (kBack) kept(k, h) = rest(more, factors[k][h]), kept(kFactors + k, h) = factors[k][h];
        });
    }
  }

  // The same for both signs.
  MDOPS_D void sides(bool is_forward, const float4 (&factors)[kSidePieces][2]) {
    constexpr int kFirst = kMiddlePieces, kSecond = kMiddlePieces + kSidePieces;
    Product<kSidePieces> negative, positive;
    {
      Rows<2 * kSidePieces> rows;
      make_rows(rows, [&](int s, int h) { return row(kFirst + s, h, kFactors + s % kSidePieces); });
      multiply_sides(negative, positive, rows);
    }
    if (!is_forward) return end<kSidePieces>(kFirst, negative), end<kSidePieces>(kSecond, positive);
#pragma unroll
    for (int begin = 0; begin < kSidePieces; begin += kAtOnce) {
      float4 g[kAtOnce][2], other[kAtOnce][2], before[kAtOnce][2], a[kAtOnce][2], b[kAtOnce][2];
      if (turns_)
        each(0, kAtOnce, [&](int k, int h) {
          g[k][h] = grad(kFirst + begin + k, h), other[k][h] = grad(kSecond + begin + k, h);
          before[k][h] = slope(begin + k, h);
        });
      each(0, kAtOnce, [&](int k, int h) {
        const float4& f = factors[begin + k][h];
        a[k][h] = f * negative(begin + k, h), b[k][h] = f * positive(begin + k, h);
      });
      const auto first = [&](int k, int h) -> float4& { return own(kFirst + begin + k, h); };
      const auto second = [&](int k, int h) -> float4& { return own(kSecond + begin + k, h); };
      if (kBack && turns_)
        each(0, kAtOnce, [&](int k, int h) {
          const float4 &f = factors[begin + k][h], &of_first = g[k][h], &of_second = other[k][h];
          const float4 sum = of_first * a[k][h] + of_second * b[k][h];
          slope(begin + k, h) = before[k][h] + rest(sum, f);
          first(k, h) = f * of_first, second(k, h) = f * of_second;
        });
      else
        each(0, kAtOnce, [&](int k, int h) {
          first(k, h) += a[k][h], second(k, h) += b[k][h];
          if constexpr (kBack) {
            const float4& f = factors[begin + k][h];
            kept(kSidePieces + begin + k, h) = rest(a[k][h], f);
            kept(2 * kSidePieces + begin + k, h) = rest(b[k][h], f);
          }
        });
    }
  }

  // On the way back: a layer's slopes times the gates' transposed weights.
  MDOPS_D void multiply_slopes(Product<kScalarPieces>& more) {
    Rows<kSidePieces> slopes;
    make_rows(slopes, [&](int k, int h) {
      if (!follows_) return slope(k, h);
      float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int order = 0; order < 3; ++order) {
        const int s = (order == 0 ? kScalarPieces : kMiddlePieces + (order - 1) * kSidePieces) + k;
        sum += own(s, h) * kept(order * kSidePieces + k, h);
      }
      return sum;
    });
    multiply(more, slopes);
  }

  const LayersArgs& args_;
  char* const shared_;
  LayersRing ring_;
  float4 *const own_, *const kept_;  // the thread's slots, in shared and in the block's own memory
  int chunk_ = 0;                    // the next one
  int layer_ = 0;                    // whose saved numbers are used
  bool begins_ = false, turns_ = false,
       follows_ = false;  // the first pass, the turning one, and those after it
  int row_, group_;
  int edge_[2], next_edge_[2];  // the thread's, and those of the next tile; -1: none
  int64_t group_sums_ = 0;      // of the warp's first eight edges
  int count_ = 0;               // edges of the tile
  float by_row_[2] = {};
};

#endif

template <int kParts, bool kBack>
__global__ void __launch_bounds__(kLayersThreads, 1) layers_kernel(const __grid_constant__ LayersArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const TileShare share(args.edges, kLayersRows);
  const int64_t tiles = share.count();
  LayersTile<kParts, kBack> own(args, tiles, share.first(0), share.edges(0));
  for (int64_t k = 0; k < tiles; ++k)
    own.run(share.first(k), share.edges(k), share.first(k + 1), share.edges(k + 1));
#endif
}

// Clears the gradients of edges without a neighbour, which are in no node's order.
static __global__ void __launch_bounds__(kLayersThreads) clear_edges_kernel(const LayersArgs args) {
  const int64_t e = static_cast<int64_t>(blockIdx.x) * kLayersThreads + threadIdx.x;
  if (e >= args.edges || args.x.index[e] >= 0) return;
  for (int a = 0; a < 3; ++a) args.by_vectors[3 * e + a] = 0;
  for (int k = 0; k < kOwnMixture; ++k) args.by_mixture[e * kOwnMixture + k] = 0;
  args.by_weight[e] = 0;
}

// Adds up a node's groups of eight, four numbers per thread; NaN for wrong `offsets`.
static __global__ void __launch_bounds__(kLayersThreads)
    sum_groups_kernel(const GroupSums groups, const int32_t* offsets, int64_t nodes, int64_t edges,
                      float4* sums) {
  constexpr int kVectors = kOwnNode / 4;
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kLayersThreads + threadIdx.x, n = k / kVectors;
  if (n >= nodes) return;
  const int at = static_cast<int>(k % kVectors);
  const int64_t begin = offsets[n], end = offsets[n + 1];
  float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
  const auto add = [&](const float* from) {
    const float4 x = __ldcs(reinterpret_cast<const float4*>(from) + at);
    sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
  };
  if (begin < 0 || begin > end || end > edges) {
    const float wrong = not_a_number<float>();
    sum = {wrong, wrong, wrong, wrong};
  } else if (begin < end) {
    if (begin % kGroupEdges) add(groups.of_begins + n * kOwnNode);
    const int64_t last = (end - 1) / kGroupEdges;
#pragma unroll 4
    for (int64_t g = (begin + kGroupEdges - 1) / kGroupEdges; g <= last; ++g)
      add(groups.of_groups + g * kOwnNode);
  }
  sums[k] = sum;
}

}  // namespace mdops::gpu_so2
