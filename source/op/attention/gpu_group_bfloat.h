// Attention's gradients by the products of warpgroups, on Hopper (sm_90a), in bfloat16: heads 65 to 128 wide,
// no bias, gate or switch (of heads of 64 ptxas makes wrong code: docs/cuda.md). As gpu_group_backward.h has
// it, but that nothing has a scale: rows come to shared memory as they are, a step ahead, and sums stay with
// the tensor cores.
#pragma once

#include "attention/gpu_group_backward.h"

namespace mdops {
namespace gpu_attention {

struct BfloatMemory {
  static constexpr int kColumns = kTileWidth;  // of a head, with zeros
  static constexpr int kKeys = 128, kStep = 32, kThreads = 2 * 4 * kWarp, kBlocks = kColumns / kBlockColumns;
  static constexpr int kKeyBlock = kKeys * kBlockRow, kStepBlock = kStep * kBlockRow;
  static constexpr int kValues = kBlocks * kKeyBlock, kStages = 2 * kValues;
  static constexpr int kGrads = kBlocks * kStepBlock, kStage = 2 * kGrads;  // Q, then G
  static constexpr int kSlopes = kStages + 2 * kStage, kRows = kSlopes + kKeys * 2 * kStep;
  // logsumexp and delta of both stages; room to begin on a multiple of 1,024.
  static constexpr int kBytes = kRows + 2 * 2 * kStep * 4 + kAlignment;
};

// `sums` of dQ in float32, (rows, heads, width), where it takes several tiles of keys.
// T is __nv_bfloat16: as a template it is compiled by the source that launches it, and by no other.
template <class T>
__global__ void __launch_bounds__(BfloatMemory::kThreads, 1)
    bfloat_backward_kernel(TensorArgs<T> p, GradientArgs<T> g, Blocks blocks, Wide wide, float* sums) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using M = BfloatMemory;
  using N = Numbers<T, 1>;
  constexpr int D = M::kColumns, kStep = M::kStep, kUnits = kStep / 8, kKeys = M::kKeys;
  char* const memory = aligned_memory();
  const TileBlock b = tile_block(p, blocks, nullptr);
  const int length = b.last, lane = lane_index(), warp = threadIdx.x / kWarp, half = warp / 4;
  const auto of_q = [&] { return rows_of(p, b, p.q, p.width, wide.keys); };
  const auto of_grad = [&] { return rows_of(p, b, g.grad_out, p.value_width, wide.values); };
  if (g.out) delta_of_sequence<T, D>(p, g, b, of_grad(), rows_of(p, b, g.out, p.value_width, wide.values));
  ask_for_coming(p, g, b);
  const auto bring = [&](int at, int block_bytes, const RowsOf<T>& from, int first, int rows, int group) {
    bring_group<T, N, D>(0, from, first + group * kGroup, rows - group * kGroup, nullptr,
                         [&](int row, int piece) {
                           return memory + at + place_in_blocks(block_bytes, group * kGroup + row, piece);
                         });
  };
  const auto copy_step = [&](int query, int stage) {
    const int at = M::kStages + stage * M::kStage;
    if (warp < 2 * (kStep / kGroup))
      bring(at + warp % 2 * M::kGrads, M::kStepBlock, of_q().or_else(warp % 2, of_grad()), query,
            length - query, warp / 2);
    const int number = static_cast<int>(threadIdx.x) - (M::kThreads - 2 * kStep);
    if (number >= 0) {
      const int j = query + number % kStep;
      const int64_t from = static_cast<int64_t>(b.item.begin + min(j, length - 1)) * p.heads + b.head;
      copy_to_shared<4>(memory + M::kRows + 4 * (stage * 2 * kStep + number),
                        (number < kStep ? g.logsumexp : g.delta) + from, j < length);
    }
  };

  for (int tile = 0; tile < length; tile += kKeys) {
    const int count = min(kKeys, length - tile), groups = (count + kGroup - 1) / kGroup;
    const bool first_tile = tile == 0, last_tile = tile + kKeys >= length, active = warp < groups;
    const int row = kGroup * warp;  // of the warp's 16 keys
    __syncthreads();
    // Zeros of keys that are not there, too: products over keys take all.
    bring(0, M::kKeyBlock, rows_of(p, b, p.k, p.width, wide.keys), tile, count, warp);
    if (active)
      bring(M::kValues, M::kKeyBlock, rows_of(p, b, p.v, p.value_width, wide.values), tile, count, warp);
    copy_step(0, 0);
    float value_sums[D / 8][4] = {}, key_grads[D / 8][4] = {};

    for (int query = 0; query < length; query += kStep) {
      const int stage = query / kStep % 2;
      wait_for_copies();
      fence_shared();
      __syncthreads();  // the step has come, and nobody needs the one before any more
      if (query + kStep < length) copy_step(query + kStep, 1 - stage);
      const char *const queries = memory + M::kStages + stage * M::kStage, *const grads = queries + M::kGrads;
      const float* const rows = reinterpret_cast<const float*>(memory + M::kRows) + stage * 2 * kStep;

      float s[kUnits][4], t[kUnits][4];
      const auto multiply = [&](float (&sum)[kUnits][4], const char* of_keys, const char* of_step) {
#pragma unroll
        for (int block = 0; block < M::kBlocks; ++block) {
          const uint64_t left =
              matrix_of_rows<kBlockRow>(of_keys + block * M::kKeyBlock + half * (M::kKeyBlock / 2));
          const uint64_t right = matrix_of_rows<kBlockRow>(of_step + block * M::kStepBlock);
#pragma unroll
          for (int k = 0; k < kBlockColumns / 16; ++k)
            multiply_group<true, false>(sum, left + 2 * k, right + 2 * k, block + k > 0);
        }
      };
      begin_products();
      multiply(s, memory, queries);
      multiply(t, memory + M::kValues, grads);
      commit_products();
      wait_for_products<0>();
      settle(s), settle(t);
      if (active) {
        const PairFactors factors{rows, rows + kStep, nullptr, nullptr, nullptr, nullptr, kKeys};
        step_gradients<KnownFactors<0, false>>(p, g, b, factors, tile, row, query, p.scale, 1.0f, s, t);
      } else {
#pragma unroll
        for (int n = 0; n < kUnits; ++n)
#pragma unroll
          for (int k = 0; k < 4; ++k) s[n][k] = t[n][k] = 0;
      }
      uint32_t slope[2][1][4], value[2][1][4];  // X and P as operands, 16 queries each
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        as_operand<N>(t[2 * group], t[2 * group + 1], 1.0f, slope[group]);
        as_operand<N>(s[2 * group], s[2 * group + 1], 1.0f, value[group]);
#pragma unroll
        for (int k = 0; k < 4; ++k)
          *reinterpret_cast<uint32_t*>(memory + M::kSlopes +
                                       piece_place<kStep>(row + lane / 4 + k % 2 * 8, 2 * group + k / 2) +
                                       lane % 4 * 4) = slope[group][0][k];
      }
      fence_shared();
      __syncthreads();

      // dQ^T, 64 columns of the head by each group; of narrow heads by both, of which one counts.
      float of_queries[kUnits][4];
      const int block = half % M::kBlocks;
      begin_products();
#pragma unroll
      for (int group = 0; group < kKeys / kGroup; ++group)
        multiply_group<true, true>(
            of_queries, matrix_of_rows<kBlockRow>(memory + block * M::kKeyBlock + group * kGroup * kBlockRow),
            matrix_of_rows<2 * kStep>(memory + M::kSlopes + group * kGroup * 2 * kStep), group > 0);
      commit_products();
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        multiply_group<true, true>(
            value_sums, value[group][0],
            matrix_of_rows<kBlockRow>(grads + group * kGroup * kBlockRow, M::kStepBlock), true);
        multiply_group<true, true>(
            key_grads, slope[group][0],
            matrix_of_rows<kBlockRow>(queries + group * kGroup * kBlockRow, M::kStepBlock), true);
      }
      commit_products();
      wait_for_products<1>();
      settle(of_queries);
      if (half < M::kBlocks) {
        const int column = kBlockColumns * half + warp % 4 * kGroup + lane / 4;
#pragma unroll
        for (int n = 0; n < kUnits; ++n)
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const int j = query + 8 * n + 2 * (lane % 4) + k % 2, d = column + k / 2 * 8;
            if (j >= length || d >= p.width) continue;
            const int64_t at = p.row(b.item.begin + j, b.head, p.width) + d;
            const float sum = of_queries[n][k] + (first_tile ? 0.0f : sums[at]);
            if (last_tile)
              put(g.grad_q + at, p.scale * sum);
            else
              sums[at] = sum;
          }
      }
      wait_for_products<0>();
      settle(value_sums), settle(key_grads);
    }
    if (active) {
      put_rows(p, b, g.grad_v, p.value_width, wide.values, tile + row, value_sums, 1.0f);
      put_rows(p, b, g.grad_k, p.width, wide.keys, tile + row, key_grads, p.scale);
    }
  }
#endif
}

}  // namespace gpu_attention
}  // namespace mdops
