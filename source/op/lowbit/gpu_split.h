// Low-bit products with too few tiles to keep Hopper's multiprocessors busy, but much depth: the blocks of a
// cluster share a tile's depth, and then its rows, of which each adds up what all have. In the order of the
// blocks, so that the bits are the same in every run.
#pragma once

#include "lowbit/gpu_wgmma.h"

namespace mdops {
namespace gpu_lowbit {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Four numbers of a block of the cluster, at the address that they have here.
__device__ __forceinline__ uint4 words_there(uint32_t at, int block) {
  uint4 w;
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [there];\n}"
      : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
      : "r"(at), "r"(block)
      : "memory");
  return w;
}
__device__ __forceinline__ void add_words(int (&sums)[4], const uint4& w) {
  sums[0] += static_cast<int>(w.x), sums[1] += static_cast<int>(w.y);
  sums[2] += static_cast<int>(w.z), sums[3] += static_cast<int>(w.w);
}
__device__ __forceinline__ void add_words(float (&sums)[4], const uint4& w) {
  sums[0] = __fadd_rn(sums[0], __uint_as_float(w.x)), sums[1] = __fadd_rn(sums[1], __uint_as_float(w.y));
  sums[2] = __fadd_rn(sums[2], __uint_as_float(w.z)), sums[3] = __fadd_rn(sums[3], __uint_as_float(w.w));
}
__device__ __forceinline__ void put_bits(uint32_t at, int x, int y) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void put_bits(uint32_t at, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void store_one(float* out, float x) {
  *out = x;
}
__device__ __forceinline__ void store_one(__half* out, float x) {
  *out = __float2half_rn(x);
}
__device__ __forceinline__ void store_one(__nv_bfloat16* out, float x) {
  *reinterpret_cast<uint16_t*>(out) = bfloat16_bits(__float_as_uint(x));
}
template <class Out>
__device__ __forceinline__ void store_four(const Product& p, int row, int col, const float (&x)[4]) {
  Out four[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) store_one(four + k, x[k]);
  Out* to = static_cast<Out*>(p.out) + static_cast<int64_t>(row) * p.cols + col;
  using Words = std::conditional_t<sizeof(Out) == 4, uint4, uint2>;
  if (p.cols % 4 == 0) {
    *reinterpret_cast<Words*>(to) = *reinterpret_cast<const Words*>(four);
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (col + k < p.cols) to[k] = four[k];
  }
}

template <int Columns, class Number, class Ring>
__device__ __forceinline__ void put_sums(const Ring& ring, int group, const Number* sums) {
  constexpr int kPitch = 4 * (Columns + 8);
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kGroupThreads / 32;
  const uint32_t at = ring.shared + (64 * group + 16 * warp + lane / 4) * kPitch + 8 * (lane % 4);
#pragma unroll
  for (int j = 0; j < Columns / 8; ++j)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      put_bits(at + 8 * h * kPitch + 32 * j, sums[4 * j + 2 * h], sums[4 * j + 2 * h + 1]);
}

// This block's rows of the tile, the sums of all blocks added in their order.
template <int Columns, int Blocks, class Number>
__device__ __forceinline__ void store_share(const Product& p, uint32_t shared, int rank, int row0, int col0) {
  constexpr int kPitch = 4 * (Columns + 8), kPieces = Columns / 4, kApart = 2 * kGroupThreads / kPieces;
  const int t = threadIdx.x - kGroupThreads, col = col0 + 4 * (t % kPieces);
  const int rows = min(kWideRows, p.rows - row0), share = (rows + Blocks - 1) / Blocks;
  if (col >= p.cols) return;
  float scale[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) scale[k] = p.b_scale[p.b_step * min(col + k, p.cols - 1)];
  for (int r = rank * share + t / kPieces; r < min((rank + 1) * share, rows); r += kApart) {
    const float a = p.a_scale[p.a_step * (row0 + r)];
    uint4 words[Blocks];
#pragma unroll
    for (int b = 0; b < Blocks; ++b) words[b] = words_there(shared + r * kPitch + 16 * (t % kPieces), b);
    Number sums[4] = {};
#pragma unroll
    for (int b = 0; b < Blocks; ++b) add_words(sums, words[b]);
    float x[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = __fmul_rn(__fmul_rn(as_float(sums[k]), scale[k]), a);
    if (p.out_kind == LowBitOut::float32)
      store_four<float>(p, row0 + r, col, x);
    else if (p.out_kind == LowBitOut::bfloat16)
      store_four<__nv_bfloat16>(p, row0 + r, col, x);
    else
      store_four<__half>(p, row0 + r, col, x);
  }
}

#endif

template <LowBit A, LowBit B, int Columns, int Blocks>
__global__ void __launch_bounds__(kWideThreads, 1)
    split_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                 const Product p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Number = std::conditional_t<A == LowBit::int8, int, float>;
  extern __shared__ __align__(128) uint8_t memory[];
  Ring<Columns, 1> ring{(shared_address(memory) + 1023) & ~1023u};
  const int role = threadIdx.x / kGroupThreads, rank = cluster_rank();
  if (threadIdx.x == 0) {
    prefetch_map(&a_map), prefetch_map(&b_map);
    ring.make();
  }
  __syncthreads();
  follow_kernels();

  const int stages = (p.depth + kStageDepth - 1) / kStageDepth;
  const int first = stages * rank / Blocks, count = stages * (rank + 1) / Blocks - first;
  const int2 tile =
      tile_of(blockIdx.x / Blocks, (p.rows + kWideRows - 1) / kWideRows, (p.cols + Columns - 1) / Columns);
  const int row0 = tile.x * kWideRows, col0 = tile.y * Columns;
  if (role == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0)
      for (int stage = first; stage < first + count; ++stage)
        ring.fill(a_map, b_map, stage * kStageDepth, row0, col0, 0);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    Number sums[Columns / 2];
#pragma unroll
    for (int k = 0; k < Columns / 2; ++k) sums[k] = 0;
    if (row0 + 64 * (role - 1) >= p.rows) {
      for (int stage = 0; stage < count; ++stage) {
        wait_for(ring.full(ring.slot), ring.phase);
        ring.release(ring.slot);
        ring.advance();
      }
    } else if (count > 0) {
      if constexpr (A == LowBit::int8)
        sum_whole(ring, role - 1, count, sums);
      else
        sum_in_turns<A, B>(ring, p, role - 1, count, col0, sums);
    }
    sync_groups();  // all have read the stages
    put_sums<Columns>(ring, role - 1, sums);
  }
  __syncwarp();
  sync_blocks<Blocks>();
  if (role > 0) store_share<Columns, Blocks, Number>(p, ring.shared, rank, row0, col0);
  __syncwarp();
  sync_blocks<Blocks>();  // no block ends while another reads its memory
#else
  static_cast<void>(p);
#endif
}

}  // namespace gpu_lowbit
}  // namespace mdops
