// Attention among edges by the tensor cores, for float32 with its accuracy (common/gpu_tf32.h), if K and V
// are 32: the result and its gradient.
//
// A block has an atom. Its x is in shared memory in two parts, twice: in the order of products with the rows'
// numbers, and of those with the keys. A warp has 16 queries, and some heads in turn. Scores stay in
// registers, where results and operands have the same layout; for sums over the queries they are transposed
// in the warp's own shared memory, and Q and G are read again, transposed.
//
// Tensor cores round sums towards zero: so sums over heads are made outside of them.
#pragma once

#include <math_constants.h>

#include "common/gpu.h"
#include "common/gpu_power.h"
#include "common/gpu_tf32.h"
#include "common/gpu_unroll.h"
#include "common/gpu_warp.h"
#include "edge_attention/edge_attention.h"
#include "gemm/gpu_memory.h"

namespace mdops::gpu_edge_attention {

struct TensorLayout {
  int64_t most, size;  // edges; no global memory
  int parts;           // splits of the heads of 16 queries, one per warp
};

// For atoms of up to 8 kMost edges.
template <int kMost, bool kBack>
class TensorWork {
  static constexpr int kWidth = 32, kEights = kWidth / 8;
  static constexpr int kEdges = (kMost + 1) / 2 * 16;
  // Stride of rows of scores: lanes that write or read together access different banks.
  static constexpr int kRow = kMost <= 5 ? 40 : 56;
  static constexpr int kOfX = kMost * kEights * kWarp;  // numbers of a copy of x, four each
  // A warp's own memory: scores of two kinds, later its sums by x; gradients by c and a; sums by r and w.
  static constexpr int kScores = 16 * kRow, kByEdge = 4 * kScores;
  static constexpr int kOwn = kBack ? kByEdge + 4 * kEdges : 0;
  static_assert(kMost * 8 <= kRow && kMost * 8 * kWidth <= 2 * kScores);

 public:
  static constexpr int kBlocks = 1,
                       kThreads = (kMost <= 4 ? 12 : 8) * kWarp;  // sets their number of registers
  using Layout = TensorLayout;
  static int64_t bytes(int parts) {
    return static_cast<int64_t>(sizeof(float)) * (8 * kOfX + 4 * kEdges + 2 * parts * kOwn);
  }

  __device__ TensorWork(const EdgeAttentionArgs<float>& args, const TensorLayout& at, float*, int64_t first,
                        int64_t n, float absent)
      : args_(args),
        first_(first),
        n_(static_cast<int>(n)),
        heads_(static_cast<int>(args.heads)),
        parts_(at.parts),
        absent_(absent),
        q_(args.q + first * args.heads * kWidth),
        grad_(kBack ? args.grad + first * args.heads * kWidth : nullptr),
        to_((kBack ? args.by_q : args.out) + first * args.heads * kWidth),
        by_rows_(reinterpret_cast<uint4*>(net_memory())),
        by_keys_(by_rows_ + kOfX),
        edges_(reinterpret_cast<float4*>(by_keys_ + kOfX)),
        own_(reinterpret_cast<float*>(edges_ + kEdges) + threadIdx.x / kWarp * kOwn) {}

  __device__ void run() {
    run_tiles<kMost>();
    __syncthreads();
  }

 private:
  // Scores of a warp's queries with all keys: rows g and g + 8, two keys of each eight.
  template <int kTiles>
  using Scores = float[kTiles][4];
  template <int kTiles>
  using SumsByX = float[2][kTiles][4];

  struct Row {
    float top, inverse, delta;
  };

  template <int kTiles>
  __device__ void run_tiles() {
    place_edges<kTiles>();
    float4* const by_edge = reinterpret_cast<float4*>(own_ + kByEdge);
    if constexpr (kBack)
      for (int l = lane_index(); l < kEdges; l += kWarp) by_edge[l] = {0.0f, 0.0f, 0.0f, 0.0f};
    __syncthreads();
    SumsByX<kBack ? kTiles : 1> by_x = {};
    const int units = (n_ + 15) / 16 * parts_, warps = blockDim.x / kWarp;
    for (int unit = threadIdx.x / kWarp; unit < units; unit += warps) {
      const int part = unit % parts_;
      run_unit<kTiles>(unit / parts_ * 16, heads_ * part / parts_, heads_ * (part + 1) / parts_, by_x);
    }
    if constexpr (!kBack) return;
    unrolled<2, kTiles, 4>([&](int m, int tile, int k) {
      own_[place(8 * tile + 2 * t() + k % 2, 16 * m + g() + k / 2 * 8)] = by_x[m][tile][k];
    });
    __syncthreads();
    write(warps);
  }

  __device__ int g() const { return lane_index() / 4; }
  __device__ int t() const { return lane_index() % 4; }
  // The place of a warp's sum by a number of x.
  __device__ static int place(int key, int value) { return key * kWidth + (value ^ key / 2 % 4 * 8); }

  template <int kTiles>
  __device__ void place_edges() const {
    const float* const x = args_.x + first_ * kWidth;
    for (int at = threadIdx.x; at < kTiles * kEights * kWarp; at += blockDim.x) {
      const int lane = at % kWarp, of_rows = at / kWarp % kEights, tile = at / kWarp / kEights;
      int key = 8 * tile + lane / 4, value = 8 * of_rows + 2 * (lane % 4);
      const float2 two = key < n_ ? read_two(x + key * kWidth + value) : float2{0.0f, 0.0f};
      place_two(by_rows_[at], two.x, two.y);
      const int eight = at / kWarp % kTiles;
      key = 8 * eight + 2 * (lane % 4), value = at / kWarp / kTiles * 8 + lane / 4;
      const float* const from = x + key * kWidth + value;
      place_two(by_keys_[at], key < n_ ? __ldg(from) : 0.0f, key + 1 < n_ ? __ldg(from + kWidth) : 0.0f);
    }
    for (int l = threadIdx.x; l < kEdges; l += blockDim.x) {
      float4 edge{0.0f, 0.0f, 0.0f, 0.0f};
      if (l < n_) {
        const float* const r = args_.r + 3 * (first_ + l);
        edge = {r[0], r[1], r[2], args_.w[first_ + l]};
      }
      edges_[l] = edge;
    }
  }
  __device__ static void place_two(uint4& to, float a, float b) {
    split_to(to.x, to.z, a), split_to(to.y, to.w, b);
  }

  template <int kTiles, class Sums>
  __device__ void run_unit(int query, int begin, int end, Sums& by_x) const {
    if constexpr (kBack) {
      const Scores<kTiles> none = {};
      keep(2, none), keep(3, none);
    }
#pragma unroll 1
    for (int head = begin; head < end; ++head) {
      Scores<kTiles> s, e;
      Scores<kBack ? kTiles : 1> t;
      products(q_, query, head, s);
      if constexpr (kBack) products(grad_, query, head, t);
      Row rows[2];
      shares(query, s, t, e, rows);
      if constexpr (kBack) {
        gradients(query, s, t, e, rows);
        keep(0, s), keep(1, t);
        __syncwarp();
        to_rows(s, query, head, rows);
        add_by_x(query, head, by_x);
        __syncwarp();
      } else {
        to_rows(e, query, head, rows);
      }
    }
    if constexpr (kBack) add_by_edges<kTiles>(query);
  }

  // The offset of a head of this row in the atom's part of an array (E, H, 32).
  __device__ int row_of(int query, int head) const { return (query * heads_ + head) * kWidth; }

  // The products of the rows with all keys.
  template <int kTiles>
  __device__ void products(const float* array, int query, int head, Scores<kTiles>& to) const {
    float rows[kEights][4];
    unrolled<2>([&](int h) {
      const int j = query + g() + 8 * h;
      const float* const from = array + row_of(j, head) + 2 * t();
      unrolled<kEights>([&](int eight) {
        const float2 two = j < n_ ? read_two(from + 8 * eight) : float2{0.0f, 0.0f};
        rows[eight][2 * h] = two.x, rows[eight][2 * h + 1] = two.y;
      });
    });
    multiply(to, rows, by_rows_);
  }

  // c = A B of eight columns each, with A in registers in the layout of products.
  template <int kColumns, int kDepth>
  __device__ static void multiply(float (&c)[kColumns][4], const float (&rows)[kDepth][4], const uint4* b) {
    float small[kColumns][4] = {};
    unrolled<kColumns, 4>([&](int column, int k) { c[column][k] = 0.0f; });
    unrolled<kDepth>([&](int eight) {
      uint32_t high[4], low[4];
      split_rows(high, low, rows[eight][0], rows[eight][2], rows[eight][1], rows[eight][3]);
      unrolled<kColumns>([&](int column) {
        const uint4 two = b[(column * kDepth + eight) * kWarp + lane_index()];
        multiply_8(small[column], low, two.x, two.y);
        multiply_8(small[column], high, two.z, two.w);
        multiply_8(c[column], high, two.x, two.y);
      });
    });
    unrolled<kColumns, 4>([&](int column, int k) { c[column][k] += small[column][k]; });
  }
  __device__ static void split_rows(uint32_t (&high)[4], uint32_t (&low)[4], float a, float b, float c,
                                    float d) {
    split_to(high[0], low[0], a), split_to(high[1], low[1], b);
    split_to(high[2], low[2], c), split_to(high[3], low[3], d);
  }

  __device__ static EdgePair<float> pair(const float4& j, const float4& l, float s) {
    return {s, j.x * l.x + j.y * l.y + j.z * l.z, j.w * l.w};
  }

  // Calls f(row, tile, number, pair) for all scores. Pair data is recomputed each time: registers do not
  // suffice for it.
  template <int kTiles, class F>
  __device__ void for_scores(int query, const Scores<kTiles>& s, const F& f) const {
    asm volatile("" ::: "memory");
    const float4 own[2] = {edges_[query + g()], edges_[query + g() + 8]};
    unrolled<kTiles, 2>([&](int tile, int k) {
      const float4 edge = edges_[8 * tile + 2 * t() + k];
      unrolled<2>([&](int h) { f(h, tile, 2 * h + k, pair(own[h], edge, s[tile][2 * h + k])); });
    });
  }

  // e^x for x <= 0: to 1e-7 of the largest share.
  __device__ static float share(float x) { return power_of_two(1.44269504f * x); }  // 1 / ln 2

  // e = exp(z - top) and its sums; without gradients, e m.
  template <int kTiles, class T>
  __device__ void shares(int query, const Scores<kTiles>& s, const T& t, Scores<kTiles>& e,
                         Row (&rows)[2]) const {
    const float nothing = -CUDART_INF_F;
    unrolled<2>([&](int h) { rows[h] = {absent_ != 0.0f ? 0.0f : nothing, 0.0f, 0.0f}; });
    for_scores<kTiles>(query, s, [&](int h, int tile, int at, const EdgePair<float>& of) {
      const float z = of.logit(args_.shift, args_.gated);
      e[tile][at] = 8 * tile + 2 * this->t() + at % 2 < n_ ? z : nothing;
      rows[h].top = max(rows[h].top, e[tile][at]);
    });
    unrolled<2>([&](int h) { rows[h].top = quad_largest(rows[h].top); });
    for_scores<kTiles>(query, s, [&](int h, int tile, int at, const EdgePair<float>& of) {
      const float power = share(e[tile][at] - rows[h].top), m = of.c * of.a;
      rows[h].inverse += power;
      if constexpr (kBack) rows[h].delta += power * m * t[tile][at];
      e[tile][at] = kBack ? power : power * m;
    });
    unrolled<2>([&](int h) {
      const float of_absent = absent_ != 0.0f ? absent_ * share(-rows[h].top) : 0.0f;
      rows[h].inverse = 1 / (quad_sum(rows[h].inverse) + of_absent);
      if constexpr (kBack) rows[h].delta = rows[h].inverse * quad_sum(rows[h].delta);
    });
  }

  // Replaces scores by gradients, and adds those by c and a to the previous heads'.
  template <int kTiles>
  __device__ void gradients(int query, Scores<kTiles>& s, Scores<kTiles>& t, const Scores<kTiles>& e,
                            const Row (&rows)[2]) const {
    asm volatile("" ::: "memory");
    const float4 own[2] = {edges_[query + g()], edges_[query + g() + 8]};
    unrolled<kTiles>([&](int tile) {
      const float4 edges[2] = {edges_[8 * tile + 2 * this->t()], edges_[8 * tile + 2 * this->t() + 1]};
      unrolled<2>([&](int h) {
        float2 *const by_c = kept(2, h, tile), *const by_a = kept(3, h, tile);
        float2 of_c = *by_c, of_a = *by_a;
        unrolled<2>([&](int k) {
          float &own_s = s[tile][2 * h + k], &own_t = t[tile][2 * h + k];
          const auto found =
              edge_pair_gradients(pair(own[h], edges[k], own_s), e[tile][2 * h + k] * rows[h].inverse, own_t,
                                  rows[h].delta, args_.shift, args_.gated);
          own_s = found.s, own_t = found.share;
          (k ? of_c.y : of_c.x) += found.c, (k ? of_a.y : of_a.x) += found.a;
        });
        *by_c = of_c, *by_a = of_a;
      });
    });
  }

  // Writes the scores' product with x to a head of the rows.
  template <int kTiles>
  __device__ void to_rows(const Scores<kTiles>& scores, int query, int head, const Row (&rows)[2]) const {
    float sums[kEights][4];
    multiply(sums, scores, by_keys_);
    unrolled<2>([&](int h) {
      const int j = query + g() + 8 * h;
      const float scale = kBack ? 1.0f : rows[h].inverse;
      float* const to = to_ + row_of(j, head) + 2 * t();
#pragma unroll
      for (int eight = 0; eight < kEights; ++eight)
        if (j < n_) write_two(to + 8 * eight, sums[eight][2 * h] * scale, sums[eight][2 * h + 1] * scale);
    });
  }

  // The place of two scores of a lane in the warp's own memory.
  __device__ float2* kept(int kind, int h, int tile) const {
    return reinterpret_cast<float2*>(own_ + kind * kScores + (g() + 8 * h) * kRow + 8 * tile + 2 * t());
  }
  template <int kTiles>
  __device__ void keep(int kind, const Scores<kTiles>& scores) const {
    unrolled<kTiles, 2>(
        [&](int tile, int h) { *kept(kind, h, tile) = {scores[tile][2 * h], scores[tile][2 * h + 1]}; });
  }

  // Adds the products of the transposed rows of q and G with the stored scores, of eight queries at once.
  template <int kTiles>
  __device__ void add_by_x(int query, int head, SumsByX<kTiles>& by_x) const {
    float next[2][4];
    transposed(0, query, head, next);
#pragma unroll 2
    for (int step = 0; step < 4; ++step) {
      uint32_t high[2][4], low[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) split_rows(high[m], low[m], next[m][0], next[m][1], next[m][2], next[m][3]);
      if (step < 3) transposed(step + 1, query, head, next);
      const float* const scores = own_ + step / 2 * kScores + (step % 2 * 8 + t()) * kRow + g();
      unrolled<kTiles>([&](int tile) {
        uint4 b;
        place_two(b, scores[8 * tile], scores[8 * tile + 4 * kRow]);
        unrolled<2>([&](int m) {
          float now[4] = {};
          multiply_8(now, low[m], b.x, b.y);
          multiply_8(now, high[m], b.z, b.w);
          multiply_8(now, high[m], b.x, b.y);
          unrolled<4>([&](int k) { by_x[m][tile][k] += now[k]; });
        });
      });
    }
  }
  // For eight queries, the numbers of q or G, 16 in the rows of a product.
  __device__ void transposed(int step, int query, int head, float (&to)[2][4]) const {
    const int j = query + step % 2 * 8 + t();
    const float* const from = (step < 2 ? q_ : grad_) + row_of(j, head) + g();
    unrolled<2, 4>([&](int m, int k) {
      to[m][k] = j + k / 2 * 4 < n_ ? __ldg(from + k / 2 * 4 * heads_ * kWidth + 16 * m + k % 2 * 8) : 0.0f;
    });
  }

  // Adds the queries' and the keys' part of the gradients by c and a.
  template <int kTiles>
  __device__ void add_by_edges(int query) const {
    float4* const by_edge = reinterpret_cast<float4*>(own_ + kByEdge);
    float sums[2][4] = {};
    unrolled<kTiles, 2>([&](int tile, int h) {
      const float2 by_c = *kept(2, h, tile), by_a = *kept(3, h, tile);
      const float4* const edges = edges_ + 8 * tile + 2 * t();
      add_edge(sums[h], by_c.x, by_a.x, edges[0]), add_edge(sums[h], by_c.y, by_a.y, edges[1]);
    });
    unrolled<2>([&](int h) {
      unrolled<4>([&](int k) { sums[h][k] = quad_sum(sums[h][k]); });
      if (t() == 0) add_to(by_edge[query + g() + 8 * h], sums[h]);
    });
    __syncwarp();
    for (int l = lane_index(); l < 8 * kTiles; l += kWarp) {
      const float* const from = own_ + 2 * kScores + l;
      float of_key[4] = {};
#pragma unroll 4
      for (int j = 0; j < 16; ++j)
        add_edge(of_key, from[j * kRow], from[kScores + j * kRow], edges_[query + j]);
      add_to(by_edge[l], of_key);
    }
    __syncwarp();
  }
  __device__ static void add_edge(float (&sums)[4], float by_c, float by_a, const float4& edge) {
    sums[0] += by_c * edge.x, sums[1] += by_c * edge.y, sums[2] += by_c * edge.z, sums[3] += by_a * edge.w;
  }
  __device__ static void add_to(float4& to, const float (&sums)[4]) {
    to.x += sums[0], to.y += sums[1], to.z += sums[2], to.w += sums[3];
  }

  // Writes the sums over all warps.
  __device__ void write(int warps) const {
    const float* const all = reinterpret_cast<const float*>(edges_ + kEdges);
    for (int at = threadIdx.x; at < n_ * kWidth; at += blockDim.x) {
      float sum = 0.0f;
      for (int w = 0; w < warps; ++w) sum += all[w * kOwn + place(at / kWidth, at % kWidth)];
      args_.by_x[first_ * kWidth + at] = sum;
    }
    for (int at = threadIdx.x; at < 4 * n_; at += blockDim.x) {
      float sum = 0.0f;
      for (int w = 0; w < warps; ++w) sum += all[w * kOwn + kByEdge + at];
      const int64_t l = first_ + at / 4, c = at % 4;
      (c < 3 ? args_.by_r[3 * l + c] : args_.by_w[l]) = sum;
    }
  }

  const EdgeAttentionArgs<float>& args_;
  const int64_t first_;
  const int n_, heads_, parts_;
  const float absent_;
  const float *const q_, *const grad_;  // of the atom
  float* const to_;
  uint4 *const by_rows_, *const by_keys_;
  float4* const edges_;
  float* const own_;
};

inline bool by_tensor_cores(const Gpu& gpu, const EdgeAttentionArgs<float>& args) {
  bool is_placed = true;
  for (const float* from : {args.q, args.x, args.grad})
    is_placed &= reinterpret_cast<uintptr_t>(from) % sizeof(float2) == 0;
  return gpu.limits().capability >= 80 && is_placed && !args.along_q && args.keys == 32 && args.values == 32;
}

}  // namespace mdops::gpu_edge_attention
