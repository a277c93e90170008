// Low-bit products by Hopper's warpgroups (sm_90a), for large products of factors by lines.
//
// A block has a tile of 128 x Columns of C; its two warpgroups of 64 rows each multiply (wgmma) what a third
// one fetches by the tensor copy engine: stages of 128 of the depth, rows of A and columns of B in swizzled
// lines of 128 bytes. Two blocks side by side in the rows (a cluster) fetch half of B's stage each, for both.
// Blocks are as many as the multiprocessors and take tile after tile; the fetching goes on while a tile is
// written.
//
//   whole    integers of one group: the sum stays in the tensor cores' int32
//   parts    groups of integers, and float8: after each stage or group the sums are added up in float32
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include "gemm/gpu_hopper.h"
#include "lowbit/gpu_mma.h"

namespace mdops {
namespace gpu_lowbit {

constexpr int kWideRows = 128, kWideThreads = 3 * kGroupThreads;

template <int Columns, int Cluster>
struct WideTile8 {
  static constexpr int kColumns = Columns, kCluster = Cluster;
  static constexpr int kABytes = kWideRows * kStageDepth, kBBytes = Columns * kStageDepth;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kStages = (224 << 10) / kStageBytes;
  static constexpr int kBarrierBytes = 16 * kStages;
  static constexpr int kShared = kStages * kStageBytes + kBarrierBytes + 1024;  // lines begin on 1,024 bytes
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

__device__ __forceinline__ void fetch(uint32_t shared, const CUtensorMap* map, int k, int line,
                                      uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(shared),
      "l"(map), "r"(k), "r"(line), "r"(barrier)
      : "memory");
}

// To the same place in both blocks of a cluster, counted by each one's barrier.
__device__ __forceinline__ void fetch_for_both(uint32_t shared, const CUtensorMap* map, int k, int line,
                                               uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, "
      "{%2, %3}], [%4], %5;" ::"r"(shared),
      "l"(map), "r"(k), "r"(line), "r"(barrier), "h"(static_cast<uint16_t>(3))
      : "memory");
}

__device__ __forceinline__ int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// At a barrier of a block of the cluster that has the same address here.
__device__ __forceinline__ void arrive_at(uint32_t barrier, int block) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(block)
      : "memory");
}

template <int Cluster>
__device__ __forceinline__ void sync_blocks() {
  if constexpr (Cluster > 1) {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  } else {
    __syncthreads();
  }
}

template <int Left>
__device__ __forceinline__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
}

#define MDOPS_D4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define MDOPS_D16(c, i) MDOPS_D4(c, i), MDOPS_D4(c, i + 4), MDOPS_D4(c, i + 8), MDOPS_D4(c, i + 12)
#define MDOPS_D32(c, i) MDOPS_D16(c, i), MDOPS_D16(c, i + 16)
#define MDOPS_D64(c, i) MDOPS_D16(c, i), MDOPS_D16(c, i + 16), MDOPS_D16(c, i + 32), MDOPS_D16(c, i + 48)
#define MDOPS_INT(x) "+r"(x)
#define MDOPS_FLOAT(x) "+f"(x)
#define MDOPS_NAMES_32                                                                                   \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, "                                                                                                \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MDOPS_NAMES_64                                                                                     \
  MDOPS_NAMES_32                                                                                           \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MDOPS_NAMES_128                                                                                      \
  MDOPS_NAMES_64                                                                                             \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, "   \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, " \
  "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, "   \
  "%121, %122, %123, %124, %125, %126, %127"

// d (+)= A B, 64 x 32 times 32 x (2 Size); thread t has d[4 j + 2 h + c]: row 16 w + 8 h + l / 4 of warp w,
// lane l, column 8 j + 2 (l % 4) + c.
template <LowBit A, LowBit B>
__device__ __forceinline__ void multiply_wide(int (&d)[128], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\nwgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 "
      "{" MDOPS_NAMES_128 "}, %128, %129, add;\n}"
      : MDOPS_D64(MDOPS_INT, 0), MDOPS_D64(MDOPS_INT, 64)
      : "l"(a), "l"(b), "r"(add));
}
template <LowBit A, LowBit B>
__device__ __forceinline__ void multiply_wide(int (&d)[64], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 "
      "{" MDOPS_NAMES_64 "}, %64, %65, add;\n}"
      : MDOPS_D64(MDOPS_INT, 0)
      : "l"(a), "l"(b), "r"(add));
}
template <LowBit A, LowBit B>
__device__ __forceinline__ void multiply_wide(int (&d)[32], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 "
      "{" MDOPS_NAMES_32 "}, %32, %33, add;\n}"
      : MDOPS_D32(MDOPS_INT, 0)
      : "l"(a), "l"(b), "r"(add));
}
#define MDOPS_FLOAT8_KINDS()                            \
  if constexpr (A == LowBit::e4m3 && B == LowBit::e4m3) \
    MDOPS_FLOAT8_OF("e4m3", "e4m3");                    \
  else if constexpr (A == LowBit::e4m3)                 \
    MDOPS_FLOAT8_OF("e4m3", "e5m2");                    \
  else if constexpr (B == LowBit::e4m3)                 \
    MDOPS_FLOAT8_OF("e5m2", "e4m3");                    \
  else                                                  \
    MDOPS_FLOAT8_OF("e5m2", "e5m2")
#define MDOPS_FLOAT8_OF(A, B)                                                                              \
  asm volatile(                                                                                            \
      "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k32.f32." A "." B \
      " {" MDOPS_NAMES_64 "}, %64, %65, add, 1, 1;\n}"                                                     \
      : MDOPS_D64(MDOPS_FLOAT, 0)                                                                          \
      : "l"(a), "l"(b), "r"(add))
template <LowBit A, LowBit B>
__device__ __forceinline__ void multiply_wide(float (&d)[64], uint64_t a, uint64_t b, int add) {
  MDOPS_FLOAT8_KINDS();
}
#undef MDOPS_FLOAT8_OF
#define MDOPS_FLOAT8_OF(A, B)                                                                                \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k32.f32." A \
               "." B " {" MDOPS_NAMES_32 "}, %32, %33, add, 1, 1;\n}"                                        \
               : MDOPS_D32(MDOPS_FLOAT, 0)                                                                   \
               : "l"(a), "l"(b), "r"(add))
template <LowBit A, LowBit B>
__device__ __forceinline__ void multiply_wide(float (&d)[32], uint64_t a, uint64_t b, int add) {
  MDOPS_FLOAT8_KINDS();
}
#undef MDOPS_FLOAT8_OF
#undef MDOPS_FLOAT8_KINDS
#undef MDOPS_NAMES_128
#undef MDOPS_NAMES_64
#undef MDOPS_NAMES_32
#undef MDOPS_FLOAT
#undef MDOPS_INT
#undef MDOPS_D64
#undef MDOPS_D32
#undef MDOPS_D16
#undef MDOPS_D4

__device__ __forceinline__ void store_pair(float* out, float x, float y) {
  *reinterpret_cast<float2*>(out) = make_float2(x, y);
}
__device__ __forceinline__ void store_pair(__half* out, float x, float y) {
  *reinterpret_cast<__half2*>(out) = __floats2half2_rn(x, y);
}
__device__ __forceinline__ void store_pair(__nv_bfloat16* out, float x, float y) {
  *reinterpret_cast<uint32_t*>(out) =
      pair(bfloat16_bits(__float_as_uint(x)), bfloat16_bits(__float_as_uint(y)));
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

// The scales of columns col + 8 j and the next of each, j < Count. Inside: all are there, and two are read at
// once.
template <int Count, bool Inside>
__device__ __forceinline__ void read_scales(const Product& p, const float* scales, int col,
                                            float2 (&s)[Count]) {
#pragma unroll
  for (int j = 0; j < Count; ++j) {
    if constexpr (Inside) {
      s[j] =
          p.b_step ? *reinterpret_cast<const float2*>(scales + col + 8 * j) : make_float2(*scales, *scales);
    } else {
      const int last = p.cols - 1;
      s[j] = make_float2(scales[p.b_step * min(col + 8 * j, last)],
                         scales[p.b_step * min(col + 8 * j + 1, last)]);
    }
  }
}

// A thread's part of a tile of Columns columns, `sums` as wgmma leaves them.
template <int Columns, bool Inside, class Out, class Number>
__device__ __forceinline__ void store_tile(const Product& p, int first_row, int own_col, const Number* sums) {
  constexpr int kChunk = 8;
  float a[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) a[h] = p.a_scale[p.a_step * min(first_row + 8 * h, p.rows - 1)];
  Out* out = static_cast<Out*>(p.out) + static_cast<int64_t>(first_row) * p.cols + own_col;
#pragma unroll
  for (int j0 = 0; j0 < Columns / 8; j0 += kChunk) {
    float2 s[kChunk];
    if (p.groups == 1)
      read_scales<kChunk, Inside>(p, p.b_scale, own_col + 8 * j0, s);
    else
#pragma unroll
      for (int j = 0; j < kChunk; ++j) s[j] = make_float2(1.0f, 1.0f);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (first_row + 8 * h >= p.rows) continue;
      Out* line = out + static_cast<int64_t>(8 * h) * p.cols + 8 * j0;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const Number* two = sums + 4 * (j0 + j) + 2 * h;
        const float x = __fmul_rn(__fmul_rn(as_float(two[0]), s[j].x), a[h]);
        const float y = __fmul_rn(__fmul_rn(as_float(two[1]), s[j].y), a[h]);
        if constexpr (Inside) {
          store_pair(line + 8 * j, x, y);
        } else {
          const int col = own_col + 8 * (j0 + j);
          if (col < p.cols) store_one(line + 8 * j, x);
          if (col + 1 < p.cols) store_one(line + 8 * j + 1, y);
        }
      }
    }
  }
}

template <int Columns, bool Inside, class Number>
__device__ __forceinline__ void store_sums(const Product& p, int first_row, int own_col, const Number* sums) {
  if (p.out_kind == LowBitOut::float32)
    store_tile<Columns, Inside, float>(p, first_row, own_col, sums);
  else if (p.out_kind == LowBitOut::bfloat16)
    store_tile<Columns, Inside, __nv_bfloat16>(p, first_row, own_col, sums);
  else
    store_tile<Columns, Inside, __half>(p, first_row, own_col, sums);
}

// parts += sums scale, rounded twice.
template <int Columns, bool Inside, class Number>
__device__ __forceinline__ void add_group(const Product& p, int g, int own_col, const Number* sums,
                                          float* parts) {
  constexpr int kChunk = 8;
  const float* scales = p.b_scale + static_cast<int64_t>(g) * p.cols;
#pragma unroll
  for (int j0 = 0; j0 < Columns / 8; j0 += kChunk) {
    float2 s[kChunk];
    read_scales<kChunk, Inside>(p, scales, own_col + 8 * j0, s);
#pragma unroll
    for (int j = 0; j < kChunk; ++j)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& part = parts[4 * (j0 + j) + k];
        part = __fadd_rn(part, __fmul_rn(as_float(sums[4 * (j0 + j) + k]), k % 2 ? s[j].y : s[j].x));
      }
  }
}

// parts += the sums of products that ended with those from `depth` on.
template <int Columns, class Number>
__device__ __forceinline__ void add_stage(const Product& p, int depth, int own_col, bool inside,
                                          const Number* sums, float* parts) {
  if (p.groups == 1) {
#pragma unroll
    for (int k = 0; k < Columns / 2; ++k) parts[k] = __fadd_rn(parts[k], as_float(sums[k]));
  } else if (inside) {
    add_group<Columns, true>(p, depth / p.group, own_col, sums, parts);
  } else {
    add_group<Columns, false>(p, depth / p.group, own_col, sums, parts);
  }
}

#endif

template <LowBit A, LowBit B, int Columns, bool InParts, int Cluster>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                const Product p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = WideTile8<Columns, Cluster>;
  constexpr int kSums = Columns / 2;
  constexpr bool kTurns = InParts && A != LowBit::int8;
  using Number = std::conditional_t<A == LowBit::int8, int, float>;
  extern __shared__ __align__(128) uint8_t memory[];
  const uint32_t shared = (shared_address(memory) + 1023) & ~1023u;
  const uint32_t full = shared + T::kStages * T::kStageBytes, empty = full + 8 * T::kStages;
  const int role = threadIdx.x / kGroupThreads, rank = Cluster > 1 ? cluster_rank() : 0;
  if (threadIdx.x == 0) {
    for (int s = 0; s < T::kStages; ++s) {
      init_barrier(full + 8 * s, 1);
      init_barrier(empty + 8 * s, 8 * Cluster);  // warps that read the stage, or its half elsewhere
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  sync_blocks<Cluster>();

  const int stages = (p.depth + kStageDepth - 1) / kStageDepth;
  const int row_tiles = (p.rows + kWideRows * Cluster - 1) / (kWideRows * Cluster);
  const int col_tiles = (p.cols + Columns - 1) / Columns;
  const int first = blockIdx.x / Cluster, apart = gridDim.x / Cluster, tiles = row_tiles * col_tiles;
  int slot = 0;
  uint32_t phase = 0;
  const auto advance = [&] {
    if (++slot == T::kStages) slot = 0, phase ^= 1;
  };

  if (role == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 0) {
      for (int index = first; index < tiles; index += apart) {
        const int2 tile = tile_of(index, row_tiles, col_tiles);
        const int row0 = (tile.x * Cluster + rank) * kWideRows, col0 = tile.y * Columns;
        for (int stage = 0; stage < stages; ++stage, advance()) {
          wait_for(empty + 8 * slot, phase ^ 1);
          const uint32_t at = shared + slot * T::kStageBytes, barrier = full + 8 * slot;
          expect_bytes(barrier, T::kStageBytes);
          fetch(at, &a_map, stage * kStageDepth, row0, barrier);
          if constexpr (Cluster > 1) {
            constexpr int kHalf = Columns / 2;
            fetch_for_both(at + T::kABytes + rank * kHalf * kStageDepth, &b_map, stage * kStageDepth,
                           col0 + rank * kHalf, barrier);
          } else {
            fetch(at + T::kABytes, &b_map, stage * kStageDepth, col0, barrier);
          }
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int lane = threadIdx.x % 32, warp = threadIdx.x % kGroupThreads / 32;
    const auto release = [&](int done) {
      if (lane < Cluster) {
        if constexpr (Cluster > 1)
          arrive_at(empty + 8 * done, lane);
        else
          arrive(empty + 8 * done);
      }
    };
    // Two columns at once may be read and written.
    const bool is_even = p.cols % 2 == 0 && reinterpret_cast<uintptr_t>(p.b_scale) % 8 == 0;
    for (int index = first; index < tiles; index += apart) {
      const int2 tile = tile_of(index, row_tiles, col_tiles);
      const int row0 = (tile.x * Cluster + rank) * kWideRows + 64 * (role - 1), col0 = tile.y * Columns;
      const int own_col = col0 + 2 * (lane % 4);
      const bool inside = is_even && col0 + Columns <= p.cols;
      Number d[kSums];
      float parts[InParts ? kSums : 1];
      if constexpr (InParts)
#pragma unroll
        for (int k = 0; k < kSums; ++k) parts[k] = -0.0f;  // -0 + x is x
      int before = -1;                                     // the slot that the products before these read
      int add = 0;
      if constexpr (kTurns) {
        // Float8's sums are added up after every stage: those of one while the products of the next, in other
        // registers, are under way.
        Number other[kSums];
        const auto issue = [&](Number(&sums)[kSums]) {
          wait_for(full + 8 * slot, phase);
          const uint32_t at = shared + slot * T::kStageBytes;
          const uint64_t a = wide_matrix(at + 64 * kStageDepth * (role - 1)),
                         b = wide_matrix(at + T::kABytes);
          begin_products();
          multiply_wide<A, B>(sums, a, b, 0);
#pragma unroll
          for (int step = 1; step < kStageDepth / 32; ++step)
            multiply_wide<A, B>(sums, a + 2 * step, b + 2 * step, 1);
          asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        };
        const auto finish = [&](Number(&sums)[kSums], int stage, int done) {
#pragma unroll
          for (int k = 0; k < kSums; ++k) asm volatile("" : "+f"(sums[k])::"memory");
          release(done);
          add_stage<Columns>(p, stage * kStageDepth, own_col, inside, sums, parts);
        };
        // No branch between what is issued and what is waited for: the compiler would wait after each
        // product.
        issue(d);
        int stage = 1, done = slot;
        advance();
        for (; stage + 1 < stages; stage += 2) {
          issue(other);
          wait_products<1>();
          finish(d, stage - 1, done);
          done = slot, advance();
          issue(d);
          wait_products<1>();
          finish(other, stage, done);
          done = slot, advance();
        }
        if (stage < stages) {
          issue(other);
          wait_products<1>();
          finish(d, stage - 1, done);
          wait_products<0>();
          finish(other, stage, slot);
          advance();
        } else {
          wait_products<0>();
          finish(d, stage - 1, done);
        }
      }
      for (int stage = 0; !kTurns && stage < stages; ++stage, advance()) {
        wait_for(full + 8 * slot, phase);
        const uint32_t at = shared + slot * T::kStageBytes;
        const uint64_t a = wide_matrix(at + 64 * kStageDepth * (role - 1)), b = wide_matrix(at + T::kABytes);
        begin_products();
        multiply_wide<A, B>(d, a, b, add);
#pragma unroll
        for (int step = 1; step < kStageDepth / 32; ++step)
          multiply_wide<A, B>(d, a + 2 * step, b + 2 * step, 1);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        add = 1;
        if constexpr (InParts) {
          wait_products<0>();
#pragma unroll
          for (int k = 0; k < kSums; ++k) {
            if constexpr (std::is_same_v<Number, int>)
              asm volatile("" : "+r"(d[k])::"memory");
            else
              asm volatile("" : "+f"(d[k])::"memory");
          }
          release(slot);
          if (p.groups == 1 || stage + 1 == stages || (stage + 1) * kStageDepth % p.group == 0) {
            add_stage<Columns>(p, stage * kStageDepth, own_col, inside, d, parts);
            add = 0;
          }
        } else {
          wait_products<1>();
          if (before >= 0) release(before);
          before = slot;
        }
      }
      if constexpr (!InParts) {
        wait_products<0>();
#pragma unroll
        for (int k = 0; k < kSums; ++k) asm volatile("" : "+r"(d[k])::"memory");
        release(before);
      }
      const int first_row = row0 + 16 * warp + lane / 4;
      const auto store = [&](const auto* sums) {
        if (inside)
          store_sums<Columns, true>(p, first_row, own_col, sums);
        else
          store_sums<Columns, false>(p, first_row, own_col, sums);
      };
      if constexpr (InParts)
        store(parts);
      else
        store(d);
    }
  }
  // No block ends while the other may write to its memory.
  __syncwarp();
  if constexpr (Cluster > 1) sync_blocks<Cluster>();
#else
  static_cast<void>(p);
#endif
}

// Lines of a factor as the copy engine reads them: boxes of kStageDepth by `lines`, swizzled. False where it
// cannot.
inline bool map_factor(const Factor& f, int64_t depth, int lines, CUtensorMap* map) {
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                              const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static const Encode encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(found)
                                                                         : nullptr;
  }();
  if (encode == nullptr) return false;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(depth), static_cast<cuuint64_t>(f.lines)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(f.stride)};
  const cuuint32_t box[2] = {kStageDepth, static_cast<cuuint32_t>(lines)}, steps[2] = {1, 1};
  return encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<uint8_t*>(f.data), sizes, strides, box,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace gpu_lowbit
}  // namespace mdops
