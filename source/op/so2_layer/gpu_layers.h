// All layers of an edge's message in one kernel, of float32 with 32 channels and degree 2 by Hopper's tensor
// cores: three products of float16's two parts, to float32's accuracy, or one (gemm/gpu_parts.h). Nothing
// between the layers goes to memory.
//
// A thread makes its numbers of an edge's rows of the node's own, from the edge's matrix: those of 16 edges
// are copied to the warp's place in shared memory while the tile before is under way.
//
// A block has 128 edges, each of its two warpgroups 64, and a thread of each of two edges four of sixteen
// numbers side by side: what it has of a product's sums it has of the next product's rows, too. So a thread
// needs none of another's numbers but the largest of a row, by which rows are brought to one size. Its
// numbers stand in its own places of shared memory, a product's rows in registers. Only the weights are
// shared: they come through a ring (gpu_ring.h, gpu_layers_pack.h). A gate's logits are linear in the rows of
// m = 0, too: so their weights are W's first columns times G.
//
// Backward, for the gradient g by the last layer's result:
//
//   g through the last layer, which has no gate  ->  kept
//   x through the layers, which keep f, e = f (1 - f) z and what g_0 is multiplied by in dz_0
//   the last gated layer has g by then: its dz and slopes are made where its product is
//   each layer back:  slopes, sums of g e,  ->  dz_0 += slopes G^T  ->  g += dz W^T, ...
//
// What is kept goes through device memory of the block's own, little enough to stay in the cache.
#pragma once

#include <algorithm>

#include "common/activation.h"
#include "common/gpu_copy.h"
#include "common/gpu_wgmma.h"
#include "common/rows.h"
#include "gemm/gpu_memory.h"
#include "so2_layer/gpu_layers_pack.h"
#include "so2_layer/gpu_multiply_rows.h"
#include "so2_layer/gpu_plain.h"
#include "so2_layer/gpu_ring.h"

namespace mdops {

namespace gpu_so2 {

constexpr int kLayersThreads = 256, kLayersWarps = kLayersThreads / kWarp, kLayersRows = 128;
constexpr int kLayersGroupRows = kLayersRows / 2;
constexpr int kMiddlePieces = kOwnMiddle / 16, kSidePieces = kOwnSide / 16;
constexpr int kPieces = kMiddlePieces + 2 * kSidePieces;  // of sixteen numbers of a row
constexpr int kScalarPieces = kOwnChannels / 16;
constexpr int kOwnNumbers = 16 * kPieces;
constexpr int kLayersTileBytes = kLayersRows * kOwnNumbers * static_cast<int>(sizeof(float));
constexpr int kLayersAlignment = 1024, kLayersSlots = 5;
constexpr int kOwnColumns = (kOwnDegrees + 1) * (kOwnDegrees + 1), kOwnRows = 3 * kOwnDegrees + 1;
constexpr int kTurn = kOwnRows * kOwnColumns;  // numbers of an edge's matrix
constexpr int kTurnBytes = 32 << 10;           // of all of a block's, on the ring's alignment
static_assert(kTurnBytes >= kLayersRows * kTurn * static_cast<int>(sizeof(float)));

struct LayersArgs {
  int64_t edges;
  int layers;
  RotateArgs<float> rows;
  const float* grad;
  float* y;  // the result; backward the gradient by the rows
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
constexpr int64_t layers_shared(int parts) {
  return kLayersTileBytes + kTurnBytes + LayersRing::bytes(kLayersSlots, layers_slot_bytes(parts)) +
         LayersStream::kMostChunks * sizeof(float) + kLayersAlignment;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <int kParts, bool kBack>
class LayersTile {
 public:
  // Of a block that has so many tiles, the first with so many edges from one on.
  __device__ __forceinline__ LayersTile(const LayersArgs& args, int64_t tiles, int64_t first, int count)
      : args_(args),
        shared_(net_memory() + (-reinterpret_cast<uintptr_t>(net_memory()) & (kLayersAlignment - 1))),
        ring_(shared_ + kLayersTileBytes + kTurnBytes, kLayersSlots, layers_slot_bytes(kParts), args.packed,
              args.stages, tiles),
        own_(reinterpret_cast<float4*>(shared_) + threadIdx.x),
        kept_(reinterpret_cast<float4*>(args.memory + blockIdx.x * LayersArgs::memory_of_block(args.layers)) +
              threadIdx.x) {
    const int warp = warp_index();
    group_ = warp / kGroupWarps;
    row_ = 16 * warp + lane_index() / 4;
    if constexpr (kBack) {
      ask(first, count, 0, kMiddlePieces);
      ask(first, count, kMiddlePieces, kPieces);
    }
    ask_turns(first, count);
    if (threadIdx.x < LayersStream::kMostChunks) units()[threadIdx.x] = args.unscale[threadIdx.x];
    __syncthreads();
  }

  // `count` edges from one on, and where the next ones are.
  __device__ __forceinline__ void run(int64_t first, int count, int64_t next, int next_count) {
    first_ = first, count_ = count, is_busy_ = group_ * kLayersGroupRows < count;
    next_ = next, next_count_ = next_count;
    chunk_ = 0;
    const int gated = args_.layers - 1;
    if constexpr (!kBack) rotate();
    // One piece of code for all, which is what fits into the cache of instructions.
#pragma unroll 1
    for (int k = 0; k < (kBack ? 1 + 2 * gated : args_.layers); ++k) {
      const bool is_forward = kBack ? k > 0 && k <= gated : k < gated;
      begins_ = k == 0, ends_ = k == 2 * gated, turns_ = kBack && k == gated;
      if constexpr (kBack) {
        if (k == 1) rotate();
        layer_ = k <= gated ? k - 1 : 2 * gated - k;
        if (k > gated) make_slopes(k == gated + 1);
      }
      float4 factors[kSidePieces][2], slopes[kSidePieces][2];
      middle(is_forward, factors, slopes);
      sides(is_forward, factors, slopes);
    }
  }

 private:
  template <int kCount>
  struct Rows {
    uint32_t part[kParts][kCount][4];
  };
  // Sums of the tensor cores, and by what they are multiplied in each of the thread's rows.
  template <int kPieces>
  struct Product {
    float sum[8 * kPieces], unit[2];

    __device__ __forceinline__ float4 operator()(int piece, int h) const {
      const float* const own = sum + 8 * piece + 2 * h;
      return {own[0] * unit[h], own[1] * unit[h], own[4] * unit[h], own[5] * unit[h]};
    }
  };

  static __device__ __forceinline__ int place(int piece, int h) { return (2 * piece + h) * kLayersThreads; }
  __device__ __forceinline__ float4& own(int piece, int h) const { return own_[place(piece, h)]; }
  // In the block's own device memory: the gradient, the slopes of the layer that comes next, and behind them
  // what each layer keeps: e of m = 0, -1 and 1, the factors, and those of g_0.
  __device__ __forceinline__ float4& grad(int piece, int h) const { return kept_[place(piece, h)]; }
  __device__ __forceinline__ float4& slope(int k, int h) const { return kept_[place(kPieces + k, h)]; }
  __device__ __forceinline__ float4& kept(int piece, int h) const {
    return kept_[place(kPieces + kSidePieces + layer_ * (4 * kSidePieces + kScalarPieces) + piece, h)];
  }
  static constexpr int kFactors = 3 * kSidePieces, kScalars = 4 * kSidePieces;
  static constexpr int kAtOnce = 2;  // pieces that are read together

  static __device__ __forceinline__ float4 times(const float4& a, const float4& b) {
    return {a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w};
  }
  static __device__ __forceinline__ float4 plus(const float4& a, const float4& b) {
    return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
  }
  static __device__ __forceinline__ float4 rest(const float4& f) {
    return {1.0f - f.x, 1.0f - f.y, 1.0f - f.z, 1.0f - f.w};
  }
  static __device__ __forceinline__ float4 sigmoids(const float4& a) {
    return {sigmoid_fast(a.x), sigmoid_fast(a.y), sigmoid_fast(a.z), sigmoid_fast(a.w)};
  }
  template <class F>
  static __device__ __forceinline__ void each(int begin, int end, const F& f) {
#pragma unroll
    for (int piece = begin; piece < end; ++piece)
#pragma unroll
      for (int h = 0; h < 2; ++h) f(piece, h);
  }

  __device__ __forceinline__ int64_t at(int64_t first, int piece, int h) const {
    return (first + row_ + 8 * h) * kOwnNumbers + 16 * piece + 4 * (lane_index() % 4);
  }
  // Asks for pieces of the gradient, zeros behind the last edge.
  __device__ __forceinline__ void ask(int64_t first, int count, int piece, int end) const {
    if (count > 0)
      for (; piece < end; ++piece)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const bool there = row_ + 8 * h < count;
          copy_to_shared<16>(&own(piece, h), there ? args_.grad + at(first, piece, h) : args_.grad, there);
        }
    commit_copies();
  }
  // The matrices of the warp's 16 edges, one after the other.
  __device__ __forceinline__ float* turns() const {
    return reinterpret_cast<float*>(shared_ + kLayersTileBytes) + row_ / 16 * (16 * kTurn);
  }
  __device__ __forceinline__ void ask_turns(int64_t first, int count) const {
    const int begin = row_ / 16 * 16;
    const float* const from = args_.rows.turn + (first + begin) * kTurn;
    const int there = kTurn * min(16, count - begin);
    for (int k = 4 * lane_index(); k < 16 * kTurn; k += 4 * kWarp)
      if (k < there) copy_to_shared<16>(shared_address(turns() + k), from + k, 4 * min(4, there - k));
    commit_copies();
  }
  // The rows of nodes in the frames of edges go to the own places.
  __device__ __forceinline__ void rotate() const {
    wait_for_copies<0>();
    __syncwarp();
    const int column = 4 * (lane_index() % 4);
#pragma unroll 1
    for (int h = 0; h < 2; ++h) {
      float4 sums[kOwnRows][2];
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) sums[r][0] = sums[r][1] = {0.0f, 0.0f, 0.0f, 0.0f};
      const int64_t e = first_ + row_ + 8 * h;
      const NodeRows<float>& nodes = args_.rows.x;
      if (row_ + 8 * h < count_ && !nodes.is_right(e)) {
        const float wrong = not_a_number<float>();
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) sums[r][0] = sums[r][1] = {wrong, wrong, wrong, wrong};
      } else if (row_ + 8 * h < count_ && !nodes.is_none(e)) {
        const float* const x = nodes.at(e, kOwnColumns * kOwnChannels) + column;
        const float* const turn = turns() + (lane_index() / 4 + 8 * h) * kTurn;
        float4 of[kOwnColumns][2];
#pragma unroll
        for (int d = 0; d < kOwnColumns; ++d)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            of[d][half] = __ldg(reinterpret_cast<const float4*>(x + d * kOwnChannels + 16 * half));
#pragma unroll
        for (int d = 0; d < kOwnColumns; ++d)
#pragma unroll
          for (int r = 0; r < kOwnRows; ++r) {
            const float t = turn[r * kOwnColumns + d];
#pragma unroll
            for (int half = 0; half < 2; ++half)
              sums[r][half] = plus(sums[r][half], times({t, t, t, t}, of[d][half]));
          }
      }
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) own(2 * r, h) = sums[r][0], own(2 * r + 1, h) = sums[r][1];
    }
    __syncwarp();
    ask_turns(next_, next_count_);
  }
  __device__ __forceinline__ void answer(int piece, int h, const float4& x) const {
    if (row_ + 8 * h < count_) __stcs(reinterpret_cast<float4*>(args_.y + at(first_, piece, h)), x);
  }

  // A product's rows, f(piece, h), brought to one size.
  template <int kCount, class F>
  __device__ __forceinline__ void make_rows(Rows<kCount>& rows, const F& f) {
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

  // sum (+)= sixteen numbers of rows times those of a stage.
  template <int kSign = 1, int kSize, int kCount>
  __device__ __forceinline__ void add_products(float (&sum)[kSize], const Rows<kCount>& rows, int piece,
                                               const char* stage, int step, bool adds) const {
    const uint64_t b = (kParts == 2 ? matrix_of_rows<128>(stage) : matrix_of_rows<64>(stage)) + 2 * step;
    if constexpr (kParts == 2) {
      multiply_rows<kSign>(sum, rows.part[1][piece], b, adds);
      multiply_rows<kSign>(sum, rows.part[0][piece], b + 4, 1);
    }
    multiply_rows<kSign>(sum, rows.part[0][piece], b, kParts == 2 || adds);
  }

  // f(the stage, its number) of so many stages, products of which are under way while the next one's are
  // asked for.
  template <int kStages, class F>
  __device__ __forceinline__ void each_stage(const F& f) {
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
  // Lets so many stages go by, of which this warpgroup has no rows.
  template <int kStages, class... Sums>
  __device__ __forceinline__ void pass(Sums&... sums) {
#pragma unroll 1
    for (int stage = 0; stage < kStages; ++stage) ring_.next(), ring_.let_go();
    (clear(sums), ...);
  }
  template <int kSize>
  static __device__ __forceinline__ void clear(float (&sum)[kSize]) {
#pragma unroll
    for (int k = 0; k < kSize; ++k) sum[k] = 0;
  }

  // Rows times the stream's next chunk.
  template <int kColumns, int kCount>
  __device__ __forceinline__ void multiply(Product<kColumns>& z, const Rows<kCount>& rows) {
    const float unit = next_unit();
    if (is_busy_)
      each_stage<kCount / 2>([&](const char* at, int stage) {
#pragma unroll
        for (int step = 0; step < 2; ++step)
          add_products(z.sum, rows, 2 * stage + step, at, step, stage + step > 0);
      });
    else
      pass<kCount / 2>(z.sum);
    finish(z, unit);
  }

  // The same of both signs: a U - b V and a V + b U of rows a and b.
  __device__ __forceinline__ void multiply_sides(Product<kSidePieces>& negative,
                                                 Product<kSidePieces>& positive,
                                                 const Rows<2 * kSidePieces>& rows) {
    const float unit = next_unit();
    if (is_busy_)
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
    else
      pass<kSidePieces>(negative.sum, positive.sum);
    finish(negative, unit);
    finish(positive, unit);
  }
  // What undoes the scales of chunks, behind the ring.
  __device__ __forceinline__ float* units() const {
    return reinterpret_cast<float*>(shared_ + kLayersTileBytes + kTurnBytes +
                                    LayersRing::bytes(kLayersSlots, layers_slot_bytes(kParts)));
  }
  __device__ __forceinline__ float next_unit() { return units()[chunk_++]; }
  template <int kColumns>
  __device__ __forceinline__ void finish(Product<kColumns>& z, float unit) const {
    fence_operands(z.sum);
#pragma unroll
    for (int h = 0; h < 2; ++h) z.unit[h] = by_row_[h] * unit;
  }

  // x + z of a layer without a gate, or the gradient by a layer's rows: g + dz times the transposed weights;
  // of so many pieces z(piece, h) from one on. Some of what is kept is read before any of it is written: else
  // each number would wait for its own.
  template <int kCount, class Z>
  __device__ __forceinline__ void end(int begin, const Z& z) const {
#pragma unroll
    for (int first = 0; first < kCount; first += kAtOnce) {
      float4 x[kAtOnce][2];
      if (kBack && !begins_)
        each(0, kAtOnce, [&](int k, int h) { x[k][h] = grad(begin + first + k, h); });
      else
        each(0, kAtOnce, [&](int k, int h) { x[k][h] = own(begin + first + k, h); });
      each(0, kAtOnce, [&](int k, int h) {
        const float4 found = plus(x[k][h], z(first + k, h));
        if (!kBack || ends_)
          answer(begin + first + k, h, found);
        else
          grad(begin + first + k, h) = found;
      });
    }
  }
  // The places are free for the next tile.
  __device__ __forceinline__ void follow(int piece, int end) const {
    if constexpr (kBack)
      if (ends_) ask(next_, next_count_, piece, end);
  }

  // The product of the rows of m = 0, and what is made of it. A layer with a gate has its factors then, and
  // the one from which the way goes back its part of the slopes.
  __device__ __forceinline__ void middle(bool is_forward, float4 (&factors)[kSidePieces][2],
                                         float4 (&slopes)[kSidePieces][2]) {
    if (kBack && begins_) wait_for_copies<1>();  // the first of the two groups of the gradient
    Product<kMiddlePieces> z;
    Product<kSidePieces> logits;
    {
      Rows<kMiddlePieces> rows;
      make_rows(rows, [&](int s, int h) { return own(s, h); });
      multiply(z, rows);
      if (is_forward) multiply(logits, rows);
    }
    if (!is_forward) {
      end<kMiddlePieces>(0, z);
      return follow(0, kMiddlePieces);
    }
    static_assert(kScalarPieces == kAtOnce);
    float4 g[kAtOnce][2];
    if (turns_) each(0, kScalarPieces, [&](int s, int h) { g[s][h] = grad(s, h); });
    each(0, kScalarPieces, [&](int s, int h) {
      const float4 x = z(s, h), f = sigmoids(x), more = times(x, f);
      float4& place = own(s, h);
      if constexpr (kBack) {
        // The derivative of x sigmoid(x).
        const float4 by = plus(f, times(more, rest(f)));
        if (turns_)
          place = times(g[s][h], by);
        else
          place = plus(place, more), kept(kScalars + s, h) = by;
      } else {
        place = plus(place, more);
      }
    });
#pragma unroll
    for (int begin = 0; begin < kSidePieces; begin += kAtOnce) {
      if (turns_) each(0, kAtOnce, [&](int k, int h) { g[k][h] = grad(kScalarPieces + begin + k, h); });
      each(begin, begin + kAtOnce, [&](int k, int h) {
        const int s = kScalarPieces + k;
        const float4 f = sigmoids(logits(k, h)), more = times(f, z(s, h));
        float4& place = own(s, h);
        factors[k][h] = f;
        if constexpr (kBack) {
          const float4 by = times(more, rest(f));
          if (turns_) {
            const float4& of = g[k - begin][h];
            slopes[k][h] = times(of, by), place = times(of, f);
          } else {
            place = plus(place, more), kept(k, h) = by, kept(kFactors + k, h) = f;
          }
        } else {
          place = plus(place, more);
        }
      });
    }
  }

  // The same of both signs.
  __device__ __forceinline__ void sides(bool is_forward, const float4 (&factors)[kSidePieces][2],
                                        const float4 (&slopes)[kSidePieces][2]) {
    constexpr int kFirst = kMiddlePieces, kSecond = kMiddlePieces + kSidePieces;
    if (kBack && begins_) wait_for_copies<0>();
    Product<kSidePieces> negative, positive;
    {
      Rows<2 * kSidePieces> rows;
      make_rows(rows, [&](int s, int h) { return own(kFirst + s, h); });
      // Registers have no room for these beside a product's.
      if (turns_) each(0, kSidePieces, [&](int k, int h) { own(kFirst + k, h) = slopes[k][h]; });
      multiply_sides(negative, positive, rows);
    }
    if (!is_forward) {
      end<kSidePieces>(kFirst, negative);
      end<kSidePieces>(kSecond, positive);
      return follow(kFirst, kPieces);
    }
#pragma unroll
    for (int begin = 0; begin < kSidePieces; begin += kAtOnce) {
      float4 g[kAtOnce][2], other[kAtOnce][2];
      if (turns_)
        each(0, kAtOnce, [&](int k, int h) {
          g[k][h] = grad(kFirst + begin + k, h), other[k][h] = grad(kSecond + begin + k, h);
        });
      each(begin, begin + kAtOnce, [&](int k, int h) {
        const float4 f = factors[k][h], a = times(f, negative(k, h)), b = times(f, positive(k, h));
        float4 &first = own(kFirst + k, h), &second = own(kSecond + k, h);
        if constexpr (kBack) {
          const float4 left = rest(f), by_a = times(a, left), by_b = times(b, left);
          if (turns_) {
            const float4 &of_first = g[k - begin][h], &of_second = other[k - begin][h];
            slope(k, h) = plus(first, plus(times(of_first, by_a), times(of_second, by_b)));
            first = times(f, of_first), second = times(f, of_second);
          } else {
            first = plus(first, a), second = plus(second, b);
            kept(kSidePieces + k, h) = by_a, kept(2 * kSidePieces + k, h) = by_b;
          }
        } else {
          first = plus(first, a), second = plus(second, b);
        }
      });
    }
  }

  // dz of a layer's rows in the own places: what it has kept times the gradient, and in front of all the
  // slopes times the transposed gates. `is_there`: all but the last is there.
  __device__ __forceinline__ void make_slopes(bool is_there) {
    Rows<kSidePieces> slopes;
    if (!is_there)
      each(0, kScalarPieces, [&](int s, int h) { own(s, h) = times(grad(s, h), kept(kScalars + s, h)); });
    make_rows(slopes, [&](int k, int h) {
      if (is_there) return slope(k, h);
      const float4 f = kept(kFactors + k, h);
      float4 sum{0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int order = 0; order < 3; ++order) {
        const int s = (order == 0 ? kScalarPieces : kMiddlePieces + (order - 1) * kSidePieces) + k;
        const float4 g = grad(s, h);
        sum = plus(sum, times(g, kept(order * kSidePieces + k, h)));
        own(s, h) = times(f, g);
      }
      return sum;
    });
    Product<kScalarPieces> more;
    multiply(more, slopes);
    each(0, kScalarPieces, [&](int s, int h) { own(s, h) = plus(own(s, h), more(s, h)); });
  }

  const LayersArgs& args_;
  char* const shared_;
  LayersRing ring_;
  float4 *const own_, *const kept_;  // the thread's places, of shared memory and of the block's own
  int chunk_ = 0;                    // the next one
  int layer_ = 0;                    // what keeps or has kept
  bool begins_ = false, ends_ = false, turns_ = false;  // the first pass, the last one, and that between
  int row_, group_;
  int64_t first_ = 0, next_ = 0;  // the tile's first edge, and the next one's
  int count_ = 0, next_count_ = 0;
  bool is_busy_ = false;
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

}  // namespace gpu_so2

}  // namespace mdops
