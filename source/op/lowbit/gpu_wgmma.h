// Low-bit products by Hopper's warpgroups (sm_90a), for large products of factors by lines.
//
// A block has a tile of 128 x Columns of C; its two warpgroups of 64 rows each multiply (wgmma) what a third
// one fetches by the tensor copy engine: stages of 128 of the depth, rows of A and columns of B in swizzled
// lines of 128 bytes. Two blocks (a cluster) may fetch for each other what they share of B (gpu_ring.h).
// There is a block for each multiprocessor, which takes tile after tile. Fetching continues while a tile is
// written, through shared memory in whole lines.
//
//   sum_whole      integers of one group: the sum stays in the tensor cores' int32
//   sum_groups     groups of integers, up to 128 columns: after each the sums are added up in float32
//   sum_in_turns   float8, up to 128 columns                } after each stage the sums are added up in
//   sum_in_halves  float8 of one group, 256 columns         } float32
#pragma once

#include <cuda_bf16.h>

#include "common/early.h"
#include "common/gpu_unroll.h"
#include "lowbit/gpu_ring.h"

namespace mdops::gpu_lowbit {

constexpr int kWideRows = 128, kWideThreads = 3 * kGroupThreads;

template <int Columns>
struct WideTile8 {
  static constexpr bool kTernary = false;
  static constexpr int kRows = kWideRows, kColumns = Columns;
  static constexpr int kAPlace = 0, kBPlace = kRows * kStageDepth;  // in a stage
  static constexpr int kStageBytes = kBPlace + kColumns * kStageDepth;
  static constexpr int kStages = (192 << 10) / kStageBytes;
  static constexpr int kLineBytes = 128, kPatchBytes = 16 * kLineBytes;  // of the result, on its way out
  static constexpr int kWarpBytes = kPatchBytes + 4 * Columns;           // and the columns' scales
  static constexpr int kBarriers = kStages * kStageBytes + 8 * kWarpBytes;
  static constexpr int kShared = kBarriers + 16 * kStages + 1024;  // lines begin on 1,024 bytes
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// d (+)= A B, 64 x 32 times 32 x (2 Size); thread t has d[4 j + 2 h + c]: row 16 w + 8 h + l / 4 of warp w,
// lane l, column 8 j + 2 (l % 4) + c. The macros take the registers of d, and the places of A, B and `add`.
#define MDOPS_MULTIPLY(SIZE, N, A_AT, B_AT, ADD_AT, C, TYPES, SCALES)                                     \
  asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD_AT ", 0;\nwgmma.mma_async.sync.aligned.m64n" N \
               "k32." TYPES " {" MDOPS_REGISTERS_##SIZE "}, " A_AT ", " B_AT ", add" SCALES ";\n}"        \
               : MDOPS_NUMBERS_##SIZE(C, d, 0)                                                            \
               : "l"(a), "l"(b), "r"(add))
#define MDOPS_MULTIPLY_INT8(SIZE, N, A_AT, B_AT, ADD_AT)                         \
  template <LowBit A, LowBit B>                                                  \
  MDOPS_D void multiply_bytes(int (&d)[SIZE], uint64_t a, uint64_t b, int add) { \
    MDOPS_MULTIPLY(SIZE, N, A_AT, B_AT, ADD_AT, "+r", "s32.s8.s8", "");          \
  }
#define MDOPS_MULTIPLY_BYTES(SIZE, N, A_AT, B_AT, ADD_AT)                           \
  MDOPS_MULTIPLY_INT8(SIZE, N, A_AT, B_AT, ADD_AT)                                  \
  template <LowBit A, LowBit B>                                                     \
  MDOPS_D void multiply_bytes(float (&d)[SIZE], uint64_t a, uint64_t b, int add) {  \
    if constexpr (A == LowBit::e4m3 && B == LowBit::e4m3)                           \
      MDOPS_MULTIPLY(SIZE, N, A_AT, B_AT, ADD_AT, "+f", "f32.e4m3.e4m3", ", 1, 1"); \
    else if constexpr (A == LowBit::e4m3)                                           \
      MDOPS_MULTIPLY(SIZE, N, A_AT, B_AT, ADD_AT, "+f", "f32.e4m3.e5m2", ", 1, 1"); \
    else if constexpr (B == LowBit::e4m3)                                           \
      MDOPS_MULTIPLY(SIZE, N, A_AT, B_AT, ADD_AT, "+f", "f32.e5m2.e4m3", ", 1, 1"); \
    else                                                                            \
      MDOPS_MULTIPLY(SIZE, N, A_AT, B_AT, ADD_AT, "+f", "f32.e5m2.e5m2", ", 1, 1"); \
  }
MDOPS_MULTIPLY_BYTES(8, "16", "%8", "%9", "%10")
MDOPS_MULTIPLY_BYTES(16, "32", "%16", "%17", "%18")
MDOPS_MULTIPLY_BYTES(32, "64", "%32", "%33", "%34")
MDOPS_MULTIPLY_BYTES(64, "128", "%64", "%65", "%66")
MDOPS_MULTIPLY_INT8(128, "256", "%128", "%129", "%130")
#undef MDOPS_MULTIPLY_BYTES
#undef MDOPS_MULTIPLY_INT8
#undef MDOPS_MULTIPLY

// Copies scale `index` of `count`, or zero after the last, to shared memory; `wait_for_copies` waits for it.
MDOPS_D void copy_scale(uint32_t shared, const float* scales, int step, int index, int count) {
  const bool is_there = index < count;
  copy_to_shared<4>(shared, scales + (is_there ? static_cast<int64_t>(step) * index : 0), is_there);
}

// Copies the scales of a tile's columns to a warp's shared memory. `store_tile` waits for them.
template <int Columns>
MDOPS_D void fetch_scales(const Product& p, int col0, uint32_t shared) {
#pragma unroll
  for (int c = threadIdx.x % 32; c < Columns; c += 32)
    copy_scale(shared + 4 * c, p.b_scale, p.b_step, col0 + c, p.cols);
}

// Two numbers of two bytes. On a GPU a NaN product always has the same bits, and so has its bfloat16.
MDOPS_D uint32_t two_of(__half*, float x, float y) {
  const __half2 two = __floats2half2_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&two);
}
MDOPS_D uint32_t two_of(__nv_bfloat16*, float x, float y) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&two);
}

// Stores two adjacent columns in shared memory.
MDOPS_D void put_pair(float*, uint32_t at, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
template <class Out>
MDOPS_D void put_pair(Out* kind, uint32_t at, float x, float y) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(two_of(kind, x, y)) : "memory");
}

MDOPS_D uint4 shared_words(uint32_t at) {
  uint4 w;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
               : "r"(at));
  return w;
}

MDOPS_D float2 shared_pair(uint32_t at) {
  float2 two;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two.x), "=f"(two.y) : "r"(at));
  return two;
}

// Stores sixteen bytes of a row, without columns that do not exist.
template <class Out>
MDOPS_D void store_piece(Out* to, const uint4& piece, int columns, bool whole) {
  if (whole) {
    if (columns > 0) *reinterpret_cast<uint4*>(to) = piece;
  } else {
    const Out* from = reinterpret_cast<const Out*>(&piece);
#pragma unroll
    for (int k = 0; k < 16 / static_cast<int>(sizeof(Out)); ++k)
      if (k < columns) to[k] = from[k];
  }
}

// A warp's 16 rows of a tile, `sums` as wgmma leaves them, with `a` the scales of its lane's two rows. They
// go by its shared memory, 128 bytes of each row at a time, so that whole lines are written: piece c of 16
// bytes of row r stands in place c ^ r, or c ^ 2 r of floats, whose pairs are twice as wide.
template <int Columns, class Out, class Number>
MDOPS_D void store_tile(const Product& p, uint32_t shared, int first_row, int col0, const float (&a)[2],
                        const Number* sums) {
  using T = WideTile8<Columns>;
  constexpr int kWidth = T::kLineBytes / sizeof(Out), kPiece = 16 / sizeof(Out);
  constexpr int kTurn = sizeof(Out) == 4 ? 2 : 1;
  const int lane = threadIdx.x % 32, row = lane / 4, col = 2 * (lane % 4);
  const uint32_t scales = shared + T::kPatchBytes + 4 * col;
  const bool whole = p.cols % kPiece == 0;
  wait_for_copies();
#pragma unroll
  for (int begin = 0; begin < Columns; begin += kWidth) {
    __syncwarp();
    float2 s[kWidth / 8];
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) s[j] = make_float2(1.0f, 1.0f);
    if (p.groups == 1)
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) s[j] = shared_pair(scales + 4 * begin + 32 * j);
    unrolled<kWidth / 8, 2>([&](int j, int h) {
      const int at = (8 * j + col) * static_cast<int>(sizeof(Out));
      const Number* two = sums + begin / 2 + 4 * j + 2 * h;
      put_pair(static_cast<Out*>(nullptr),
               shared + (row + 8 * h) * T::kLineBytes + 16 * (at / 16 ^ (kTurn * row & 7)) + at % 16,
               __fmul_rn(__fmul_rn(as_float(two[0]), s[j].x), a[h]),
               __fmul_rn(__fmul_rn(as_float(two[1]), s[j].y), a[h]));
    });
    __syncwarp();
    uint4 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = 4 * i + lane / 8;
      words[i] = shared_words(shared + r * T::kLineBytes + 16 * (lane % 8 ^ (kTurn * r & 7)));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = first_row + 4 * i + lane / 8, c = col0 + begin + kPiece * (lane % 8);
      if (r < p.rows)
        store_piece(static_cast<Out*>(p.out) + static_cast<int64_t>(r) * p.cols + c, words[i], p.cols - c,
                    whole);
    }
  }
}

template <int Columns, class Number>
MDOPS_D void store_sums(const Product& p, uint32_t shared, int first_row, int col0, const float (&a)[2],
                        const Number* sums) {
  if (p.out_kind == LowBitOut::float32)
    store_tile<Columns, float>(p, shared, first_row, col0, a, sums);
  else if (p.out_kind == LowBitOut::bfloat16)
    store_tile<Columns, __nv_bfloat16>(p, shared, first_row, col0, a, sums);
  else
    store_tile<Columns, __half>(p, shared, first_row, col0, a, sums);
}

// The scales of columns col + 8 j and the next of each, j < Count. Inside: all are there, and two are read at
// once.
template <int Count, bool Inside>
MDOPS_D void read_scales(const Product& p, const float* scales, int col, float2 (&s)[Count]) {
#pragma unroll
  for (int j = 0; j < Count; ++j) {
    if constexpr (Inside) {
      s[j] = *reinterpret_cast<const float2*>(scales + col + 8 * j);
    } else {
      const int last = p.cols - 1;
      s[j] = make_float2(scales[min(col + 8 * j, last)], scales[min(col + 8 * j + 1, last)]);
    }
  }
}

// parts += sums scale, rounded twice.
template <bool Inside, class Number, int Size>
MDOPS_D void add_scaled(const Product& p, int g, int own_col, const Number (&sums)[Size],
                        float (&parts)[Size]) {
  constexpr int kChunk = 8;
  const float* scales = p.b_scale + static_cast<int64_t>(g) * p.cols;
#pragma unroll
  for (int j0 = 0; j0 < Size / 4; j0 += kChunk) {
    float2 s[kChunk];
    read_scales<kChunk, Inside>(p, scales, own_col + 8 * j0, s);
    unrolled<kChunk, 4>([&](int j, int k) {
      float& part = parts[4 * (j0 + j) + k];
      part = __fadd_rn(part, __fmul_rn(as_float(sums[4 * (j0 + j) + k]), k % 2 ? s[j].y : s[j].x));
    });
  }
}

// The same for the sums of stage `stage`, within one group, of the columns from col0 on.
template <class Number, int Size>
MDOPS_D void add_group(const Product& p, int stage, int col0, const Number (&sums)[Size],
                       float (&parts)[Size]) {
  const int g = stage * kStageDepth / p.group, own_col = col0 + 2 * (threadIdx.x % 4);
  // Whether two scales may be read at once.
  if (p.cols % 2 == 0 && reinterpret_cast<uintptr_t>(p.b_scale) % 8 == 0 && col0 + 2 * Size <= p.cols)
    add_scaled<true>(p, g, own_col, sums, parts);
  else
    add_scaled<false>(p, g, own_col, sums, parts);
}

template <int Columns, int Sharers>
struct Ring : StageRing<WideTile8<Columns>, Sharers, 8> {
  using T = WideTile8<Columns>;
  using StageRing<T, Sharers, 8>::stage;

  // sums (+)= the products of 64 rows, those of warpgroup `group`, and the columns from `col` on of this
  // stage.
  template <LowBit A, LowBit B, class Number, int Size>
  MDOPS_D void multiply(Number (&sums)[Size], int group, int col, int add) const {
    const uint64_t a = wide_matrix(stage() + T::kAPlace + 64 * kStageDepth * group),
                   b = wide_matrix(stage() + T::kBPlace + col * kStageDepth);
    begin_products();
    multiply_bytes<A, B>(sums, a, b, add);
#pragma unroll
    for (int step = 1; step < kStageDepth / 32; ++step)
      multiply_bytes<A, B>(sums, a + 2 * step, b + 2 * step, 1);
    commit_products();
  }
};

// A warpgroup's sums of a tile over `count` stages, float8: a stage's sums are added up in float32, while the
// products of the next run in other registers. `Groups`: with the scales of its group. A branch around the
// sums would delay the check for the next stage until after them, so both have loops.
template <LowBit A, LowBit B, bool Groups, class Ring, int Size>
MDOPS_D void sum_in_turns(Ring& ring, const Product& p, int group, int count, int col0,
                          float (&parts)[Size]) {
  float d[Size], other[Size];
  const auto issue = [&](float (&sums)[Size]) {
    wait_for(ring.full(ring.slot), ring.phase);
    ring.template multiply<A, B>(sums, group, 0, 0);
  };
  const auto finish = [&](float (&sums)[Size], int stage, int done) {
    fence_operands(sums);
    ring.release(done);
    if constexpr (Groups)
      add_group(p, stage, col0, sums, parts);
    else
#pragma unroll
      for (int k = 0; k < Size; ++k) parts[k] = __fadd_rn(parts[k], sums[k]);
  };
  // No branch between issue and wait: the compiler would wait after each product.
  issue(d);
  int stage = 1, done = ring.slot;
  ring.advance();
  for (; stage + 1 < count; stage += 2) {
    issue(other);
    wait_for_products<1>();
    finish(d, stage - 1, done);
    done = ring.slot, ring.advance();
    issue(d);
    wait_for_products<1>();
    finish(other, stage, done);
    done = ring.slot, ring.advance();
  }
  if (stage < count) {
    issue(other);
    wait_for_products<1>();
    finish(d, stage - 1, done);
    wait_for_products<0>();
    finish(other, stage, ring.slot);
    ring.advance();
  } else {
    wait_for_products<0>();
    finish(d, stage - 1, done);
  }
}

// The same if registers do not suffice for two stages' sums: one half of the columns after the other. The
// block's other warpgroup multiplies while this one adds.
template <LowBit A, LowBit B, class Ring, int Size>
MDOPS_D void sum_in_halves(Ring& ring, int group, int count, float (&parts)[Size]) {
  float d[Size / 2];
  for (int stage = 0; stage < count; ++stage) {
    wait_for(ring.full(ring.slot), ring.phase);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ring.template multiply<A, B>(d, group, half * Size, 0);
      wait_for_products<0>();
      fence_operands(d);
      if (half == 1) ring.release(ring.slot);
#pragma unroll
      for (int k = 0; k < Size / 2; ++k)
        parts[half * Size / 2 + k] = __fadd_rn(parts[half * Size / 2 + k], d[k]);
    }
    ring.advance();
  }
}

// Groups of integers.
template <class Ring, int Size>
MDOPS_D void sum_groups(Ring& ring, const Product& p, int group, int count, int col0, float (&parts)[Size]) {
  int d[Size], add = 0;
  for (int stage = 0; stage < count; ++stage, ring.advance()) {
    wait_for(ring.full(ring.slot), ring.phase);
    ring.template multiply<LowBit::int8, LowBit::int8>(d, group, 0, add);
    wait_for_products<0>();
    fence_operands(d);
    ring.release(ring.slot);
    add = 1;
    if (stage + 1 < count && (stage + 1) * kStageDepth % p.group != 0) continue;
    add_group(p, stage, col0, d, parts);
    add = 0;
  }
}

// Integers of one group.
template <class Ring, int Size>
MDOPS_D void sum_whole(Ring& ring, int group, int count, int (&d)[Size]) {
  int before = -1;  // the slot that the products before these read
  for (int stage = 0; stage < count; ++stage) {
    wait_for(ring.full(ring.slot), ring.phase);
    ring.template multiply<LowBit::int8, LowBit::int8>(d, group, 0, stage > 0);
    wait_for_products<1>();
    if (before >= 0) ring.release(before);
    before = ring.slot, ring.advance();
  }
  wait_for_products<0>();
  fence_operands(d);
  if (before >= 0) ring.release(before);
}

#endif

template <LowBit A, LowBit B, int Columns, bool InParts, int Cluster>
__global__ void __launch_bounds__(kWideThreads, 1)
    wide_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                const Product p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = WideTile8<Columns>;
  using Number = std::conditional_t<InParts, float, int>;
  extern __shared__ __align__(128) uint8_t memory[];
  const int rank = Cluster > 1 ? cluster_rank() : 0;
  Ring<Columns, Cluster> ring{(shared_address(memory) + 1023) & ~1023u, rank};
  const int role = warp_index() / kGroupWarps;
  if (threadIdx.x == 0) {
    prefetch_map(&a_map), prefetch_map(&b_map);
    ring.make();
  }
  __syncthreads();
  if constexpr (Cluster > 1) arrive_in_cluster();
  const auto follow = [] {
    follow_kernels();
    if constexpr (Cluster > 1) wait_for_cluster();
  };

  const int stages = (p.depth + kStageDepth - 1) / kStageDepth;
  const int row_tiles = (p.rows + kWideRows * Cluster - 1) / (kWideRows * Cluster);
  const int col_tiles = (p.cols + Columns - 1) / Columns;
  const int first = blockIdx.x / Cluster, apart = gridDim.x / Cluster, tiles = row_tiles * col_tiles;
  // The first row and column of this block's tile within a cluster's.
  const auto place_of = [&](int index) {
    const int2 tile = tile_of(index, row_tiles, col_tiles);
    return make_int2((tile.x * Cluster + rank) * kWideRows, tile.y * Columns);
  };
  if (role == 0) {
    keep_registers<40>();
    int2 place = place_of(first);
    follow();
    if (threadIdx.x == 0) {
      for (int index = first; index < tiles; place = place_of(index += apart))
        for (int stage = 0; stage < stages; ++stage)
          ring.fill(a_map, b_map, stage * kStageDepth, place.x, place.y);
      ring.drain();
    }
  } else {
    take_registers<232>();
    follow();
    const int lane = threadIdx.x % 32, warp = threadIdx.x % kGroupThreads / 32;
    const uint32_t own = ring.shared + T::kStages * T::kStageBytes + (4 * (role - 1) + warp) * T::kWarpBytes;
    for (int index = first; index < tiles; index += apart) {
      const int2 place = place_of(index);
      const int row0 = place.x + 64 * (role - 1) + 16 * warp, col0 = place.y;
      if (p.groups == 1) fetch_scales<Columns>(p, col0, own + T::kPatchBytes);
      float a_scale[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) a_scale[h] = p.a_scale[p.a_step * min(row0 + lane / 4 + 8 * h, p.rows - 1)];
      Number sums[Columns / 2];
      if constexpr (InParts)
#pragma unroll
        for (int k = 0; k < Columns / 2; ++k) sums[k] = -0.0f;  // -0 + x is x
      if constexpr (!InParts)
        sum_whole(ring, role - 1, stages, sums);
      else if constexpr (A == LowBit::int8)
        sum_groups(ring, p, role - 1, stages, col0, sums);
      else if constexpr (Columns > 128)
        sum_in_halves<A, B>(ring, role - 1, stages, sums);
      else if (p.groups > 1)
        sum_in_turns<A, B, true>(ring, p, role - 1, stages, col0, sums);
      else
        sum_in_turns<A, B, false>(ring, p, role - 1, stages, col0, sums);
      store_sums<Columns>(p, own, row0, col0, a_scale, sums);
    }
  }
#else
  static_cast<void>(p);
#endif
}

}  // namespace mdops::gpu_lowbit
