// Attention by the products of warpgroups, on Hopper (sm_90a), in bfloat16: heads 33 to 128 wide, a multiple
// of 8, logits' scale above 0, no bias, gate or switch. Operands have no scales, and all sums are
// made by the tensor cores.
//
// Such sequences take longer to load than to multiply, so a block is small: one warpgroup, 64 rows of one
// side of a head. Several blocks share a multiprocessor, and some load while others multiply. The rows of
// the other side come 64 at a time, a step ahead:
//
//   forward            own Q            others K, V   S = Q K^T, o = o + P V
//   gradients, keys    own K, V         others Q, G   S^T, T^T = V G^T, dV = dV + P^T G, dK = dK + X^T Q
//   gradients, queries own Q, G         others K, V   S, T, dQ = dQ + X K
//
// Both sides of the gradients recompute S and T, so that no sum is over blocks. A tile of 64 rows
// is in blocks of 64 columns, as gpu_tiles.h shows them.
#pragma once

#include "attention/gpu_group_backward.h"
#include "common/gpu_unroll.h"

namespace mdops::gpu_attention {

constexpr int kTileRows = 64;

template <int D>
struct BfloatMemory {
  static constexpr int kRows = kTileRows, kThreads = 4 * kWarp;
  static constexpr int kBlock = kRows * kBlockRow, kTile = D / kBlockColumns * kBlock;
  // Blocks that share a multiprocessor, as registers allow.
  static constexpr int kForwardBlocks = D <= 64 ? 4 : 3, kBackwardBlocks = D <= 64 ? 3 : 2;
  // Forward: Q, then a ring of three tiles for K and V alternately.
  static constexpr int kSlots = 3, kForwardBytes = (1 + kSlots) * kTile + kAlignment;
  // Backward: two tiles of the own side, two of the others in each of two stages; their logsumexp and delta.
  static constexpr int kStage = 2 * kTile, kNumbers = 3 * kStage, kStageNumbers = 2 * kRows;
  static constexpr int kBackwardBytes = kNumbers + 2 * kStageNumbers * 4 + kAlignment;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A thread's copies of tiles of a tensor's rows: piece l % kPieces of the warp's rows l / kPieces, +
// kRowsEach, and so on.
template <class T, int D>
struct TileCopies {
  static constexpr int kPieces = D / 8, kRowsEach = kWarp / kPieces, kEach = kGroup / kRowsEach;

  const T* first;    // its first piece in the tile that begins with the sequence
  int stride, rows;  // row stride; number of rows from the first piece's on

  MDOPS_D TileCopies(const TensorArgs<T>& p, const TileBlock& b, const T* tensor, int width)
      : stride(p.heads * width) {
    const int column = lane_index() % kPieces * 8;
    first = tensor + p.row(b.item.begin + own_row(), b.head, width) + column;
    rows = column < width ? b.item.length - own_row() : 0;
  }

  static MDOPS_D int own_row() {
    return static_cast<int>(threadIdx.x) / kWarp * kGroup + lane_index() / kPieces;
  }
  // Its first piece in a tile: for its i-th row only the swizzle differs.
  static MDOPS_D int own_place() {
    return place_in_blocks(BfloatMemory<D>::kBlock, own_row(), lane_index() % kPieces);
  }
  static MDOPS_D int place(int own, int i) {
    return (own + i * kRowsEach * kBlockRow) ^ i * kRowsEach % 8 * 16;
  }

  // Copies the tile of 64 rows from row `from` of the sequence on; zeros after the sequence.
  MDOPS_D void bring(char* tile, int from) const {
    const T* at = first + static_cast<int64_t>(from) * stride;
    const int own = own_place();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      copy_to_shared<16>(tile + place(own, i), at, from + i * kRowsEach < rows);
      at += kRowsEach * stride;
    }
  }
};

// sum = A B^T of two tiles, over all columns of a head.
template <int D>
MDOPS_D void multiply_tiles(float (&sum)[8][4], const char* a, const char* b) {
#pragma unroll
  for (int block = 0; block < D / kBlockColumns; ++block) {
    const uint64_t left = matrix_of_rows<kBlockRow>(a + block * BfloatMemory<D>::kBlock);
    const uint64_t right = matrix_of_rows<kBlockRow>(b + block * BfloatMemory<D>::kBlock);
#pragma unroll
    for (int k = 0; k < kBlockColumns / 16; ++k)
      multiply_group<true, false>(sum, left + 2 * k, right + 2 * k, block + k > 0);
  }
}

// sum += A B, A (64, 64) from registers, B a tile.
template <int D>
MDOPS_D void add_tile(float (&sum)[D / 8][4], const uint32_t (&a)[4][1][4], const char* tile) {
#pragma unroll
  for (int group = 0; group < 4; ++group)
    multiply_group<true, true>(
        sum, a[group][0],
        matrix_of_rows<kBlockRow>(tile + group * kGroup * kBlockRow, BfloatMemory<D>::kBlock), true);
}

template <class T>
MDOPS_D void tile_as_operand(const float (&x)[8][4], uint32_t (&a)[4][1][4]) {
#pragma unroll
  for (int group = 0; group < 4; ++group)
    as_operand<Numbers<T, 1>>(x[2 * group], x[2 * group + 1], 1.0f, a[group]);
}

// Writes sums of the block's rows to a tensor, through a tile that is no longer needed.
template <int D, class T>
MDOPS_D void put_tile(const TensorArgs<T>& p, const TileBlock& b, char* tile, T* to, int width,
                      const float (&sums)[D / 8][4], const float (&factor)[2]) {
  using Copies = TileCopies<T, D>;
  const int lane = lane_index(), row = static_cast<int>(threadIdx.x) / kWarp * kGroup + lane / 4;
  unrolled<D / 8, 2>([&](int n, int h) {
    put_two_numbers(
        reinterpret_cast<T*>(tile + place_in_blocks(BfloatMemory<D>::kBlock, row + 8 * h, n) + lane % 4 * 4),
        factor[h] * sums[n][2 * h], factor[h] * sums[n][2 * h + 1]);
  });
  __syncwarp();
  const Copies rows(p, b, to, width);
  T* at = to + (rows.first - to) + static_cast<int64_t>(b.first) * rows.stride;
  const int own = Copies::own_place();
#pragma unroll
  for (int i = 0; i < Copies::kEach; ++i) {
    if (b.first + i * Copies::kRowsEach < rows.rows)
      *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(tile + Copies::place(own, i));
    at += Copies::kRowsEach * rows.stride;
  }
}

constexpr float kLog2E = 1.4426950408889634f;

// The softmax of a row so far, in powers of two: each thread has two rows, 8 apart.
struct RowSums {
  float largest[2], total[2];

  // s becomes the exponentials of s times factor > 0, for 64 keys of which `count` exist; o is rescaled to
  // the row's new maximum.
  template <int Units>
  MDOPS_D void add(float (&s)[8][4], float factor, int count, float (&o)[Units][4]) {
    const float lowest = __int_as_float(0xff800000);
    if (count < kTileRows) {
      const int column = 2 * (lane_index() % 4);
      unrolled<8, 4>([&](int n, int k) {
        if (column + 8 * n + k % 2 >= count) s[n][k] = lowest;
      });
    }
    float now[2] = {s[0][0], s[0][2]};
    unrolled<8, 4>([&](int n, int k) { now[k / 2] = fmaxf(now[k / 2], s[n][k]); });
    float base[2];
    bool grew = false;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      now[h] = fmaxf(largest[h], factor * quad_largest(now[h]));
      grew |= now[h] > largest[h];
      base[h] = now[h] == lowest ? 0.0f : now[h];
    }
    if (__any_sync(kAllLanes, grew)) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float old = power_of_two(largest[h] - base[h]);
        total[h] *= old, largest[h] = now[h];
#pragma unroll
        for (int n = 0; n < Units; ++n) o[n][2 * h] *= old, o[n][2 * h + 1] *= old;
      }
    }
    unrolled<8, 4>([&](int n, int k) {
      s[n][k] = power_of_two(factor * s[n][k] - base[k / 2]);
      total[k / 2] += s[n][k];
    });
  }
};

#endif

// T is __nv_bfloat16: as a template, only the source that launches it compiles it.
template <class T, int D>
__global__ void __launch_bounds__(BfloatMemory<D>::kThreads, BfloatMemory<D>::kForwardBlocks)
    bfloat_forward_kernel(TensorArgs<T> p, ForwardResults<T> results) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using M = BfloatMemory<D>;
  char* const memory = aligned_memory();
  const TileBlock b = tile_block(p, {}, nullptr);
  if (b.first == b.last) return;
  const int length = b.item.length, tiles = 2 * ((length + M::kRows - 1) / M::kRows), lane = lane_index();
  const auto slot = [&](int tile) { return memory + (1 + tile % M::kSlots) * M::kTile; };
  const TileCopies<T, D> keys(p, b, p.k, p.width), values(p, b, p.v, p.value_width);
  // K and V alternately.
  const auto bring = [&](const TileCopies<T, D>& from, int tile) {
    if (tile < tiles) from.bring(slot(tile), tile / 2 * M::kRows);
    commit_copies();
  };
  TileCopies<T, D>(p, b, p.q, p.width).bring(memory, b.first);
  bring(keys, 0), bring(values, 1), bring(keys, 2);
  float o[D / 8][4] = {};
  RowSums sums;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sums.largest[h] = p.absent ? 0.0f : __int_as_float(0xff800000);
    sums.total[h] = p.absent && lane % 4 == 0 ? p.absent[b.item.sequence]
                                              : 0.0f;  // in one lane, as lanes are summed later
  }

  for (int tile = 0; tile < tiles; tile += 2) {
    wait_for_copies<1>();
    fence_shared();
    __syncthreads();  // K is there, and nobody needs the V before any longer
    if (tile > 0) bring(keys, tile + 2);
    float s[8][4];
    begin_products();
    multiply_tiles<D>(s, memory, slot(tile));
    commit_products();
    wait_for_products<0>();
    fence_operands(s);
    wait_for_copies<1>();
    fence_shared();
    __syncthreads();  // V is there, and nobody needs K any longer
    bring(values, tile + 3);
    sums.add(s, kLog2E * p.scale, length - tile / 2 * M::kRows, o);
    uint32_t a[4][1][4];
    tile_as_operand<T>(s, a);
    begin_products();
    add_tile<D>(o, a, slot(tile + 1));
    commit_products();
    wait_for_products<0>();
    fence_operands(o);
  }

  float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float sum = quad_sum(sums.total[h]);
    inverse[h] = inverse_of_sum(sum);
    const int j = b.first + threadIdx.x / kWarp * kGroup + lane / 4 + 8 * h;
    if (lane % 4 == 0 && j < b.last)
      results.logsumexp[static_cast<int64_t>(b.item.begin + j) * p.heads + b.head] =
          sums.largest[h] / kLog2E + logf(sum);
  }
  put_tile<D>(p, b, memory, results.out, p.value_width, o, inverse);
#endif
}

// delta of 64 rows a block.
template <class T, int D>
__global__ void __launch_bounds__(BfloatMemory<D>::kThreads)
    bfloat_delta_kernel(TensorArgs<T> p, GradientArgs<T> g) {
  const TileBlock b = tile_block(p, {}, nullptr);
  constexpr Wide all{true, true};
  delta_of_rows<T, D>(p, g, b, outs_of(p, b, g.grad_out, all), outs_of(p, b, g.out, all));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The gradients of 64 keys and their values, or of 64 queries.
template <bool OfKeys, int D, class T>
MDOPS_D void bfloat_gradients(const TensorArgs<T>& p, const GradientArgs<T>& g, const TileBlock& b,
                              char* memory) {
  using M = BfloatMemory<D>;
  const int length = b.item.length, lane = lane_index();
  const TileCopies<T, D> queries(p, b, p.q, p.width), keys(p, b, p.k, p.width);
  const TileCopies<T, D> values(p, b, p.v, p.value_width), grads(p, b, g.grad_out, p.value_width);
  const auto of_row = [&](int j) { return static_cast<int64_t>(b.item.begin + j) * p.heads + b.head; };
  const auto stage = [&](int step) { return memory + (1 + step % 2) * M::kStage; };
  float* const numbers = reinterpret_cast<float*>(memory + M::kNumbers);
  const auto bring = [&](int step) {
    const int first = step * M::kRows;
    (OfKeys ? queries : keys).bring(stage(step), first);
    (OfKeys ? grads : values).bring(stage(step) + M::kTile, first);
    if constexpr (OfKeys) {
      const int k = threadIdx.x, j = first + k % M::kRows;
      copy_to_shared<4>(numbers + step % 2 * M::kStageNumbers + k,
                        (k < M::kRows ? g.logsumexp : g.delta) + of_row(min(j, length - 1)), j < length);
    }
    commit_copies();
  };
  (OfKeys ? keys : queries).bring(memory, b.first);
  (OfKeys ? values : grads).bring(memory + M::kTile, b.first);
  bring(0);
  float logsumexp[2] = {}, delta[2] = {};  // of the thread's queries
  if constexpr (!OfKeys)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t row = of_row(
          min(b.first + static_cast<int>(threadIdx.x) / kWarp * kGroup + lane / 4 + 8 * h, length - 1));
      logsumexp[h] = kLog2E * usable(g.logsumexp[row]), delta[h] = g.delta[row];
    }
  float of_first[D / 8][4] = {}, of_second[OfKeys ? D / 8 : 1][4] = {};  // dK or dQ; dV

  for (int first = 0; first < length; first += M::kRows) {
    const int step = first / M::kRows;
    wait_for_copies<0>();
    fence_shared();
    __syncthreads();  // the step is there, and nobody needs the one before any longer
    if (first + M::kRows < length) bring(step + 1);
    float s[8][4], t[8][4];
    begin_products();
    multiply_tiles<D>(s, memory, stage(step));
    multiply_tiles<D>(t, memory + M::kTile, stage(step) + M::kTile);
    commit_products();
    wait_for_products<0>();
    fence_operands(s), fence_operands(t);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int column = 8 * n + 2 * (lane % 4);
      float of_columns[2][2] = {};
      if constexpr (OfKeys) {
        const float* const at = numbers + step % 2 * M::kStageNumbers + column;
#pragma unroll
        for (int k = 0; k < 2; ++k)
          of_columns[k][0] = kLog2E * usable(at[k]), of_columns[k][1] = at[M::kRows + k];
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float sum = OfKeys ? of_columns[k % 2][0] : logsumexp[k / 2];
        const float probability = power_of_two(kLog2E * p.scale * s[n][k] - sum);
        s[n][k] = probability;
        t[n][k] = probability * (t[n][k] - (OfKeys ? of_columns[k % 2][1] : delta[k / 2]));
      }
    }
    if (!OfKeys && first + M::kRows > length) {
      // Missing keys are zeros, but may have infinite exponentials.
      unrolled<8, 4>([&](int n, int k) {
        if (first + 8 * n + 2 * (lane % 4) + k % 2 >= length) t[n][k] = 0;
      });
    }
    uint32_t probabilities[4][1][4], slopes[4][1][4];
    if constexpr (OfKeys) tile_as_operand<T>(s, probabilities);
    tile_as_operand<T>(t, slopes);
    begin_products();
    if constexpr (OfKeys) add_tile<D>(of_second, probabilities, stage(step) + M::kTile);
    add_tile<D>(of_first, slopes, stage(step));
    commit_products();
    wait_for_products<0>();
    fence_operands(of_first), fence_operands(of_second);
  }
  __syncthreads();
  const float scale[2] = {p.scale, p.scale}, one[2] = {1, 1};
  put_tile<D>(p, b, memory, OfKeys ? g.grad_k : g.grad_q, p.width, of_first, scale);
  if constexpr (OfKeys) put_tile<D>(p, b, memory + M::kTile, g.grad_v, p.value_width, of_second, one);
}

#endif

// Two adjacent blocks, of keys and of queries, for each 64 rows of a head, as they read the same data.
template <class T, int D>
__global__ void __launch_bounds__(BfloatMemory<D>::kThreads, BfloatMemory<D>::kBackwardBlocks)
    bfloat_backward_kernel(TensorArgs<T> p, GradientArgs<T> g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  char* const memory = aligned_memory();
  const TileBlock b = tile_block(p, {}, nullptr, blockIdx.x / 2);
  if (b.first == b.last) return;
  if (blockIdx.x % 2 == 0)
    bfloat_gradients<true, D>(p, g, b, memory);
  else
    bfloat_gradients<false, D>(p, g, b, memory);
#endif
}

}  // namespace mdops::gpu_attention
