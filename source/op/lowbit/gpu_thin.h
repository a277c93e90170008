// Low-bit products of few rows, or small ones, by Hopper's warpgroups. They are bound by fetching B and by
// the latency of dependent steps. A block multiplies C^T = B^T A^T: 64 columns of C are the
// rows of a product, so that 16 rows of A cost no more than that. Its warpgroups take the stages of the depth
// in turn and add up their sums in order. Two blocks (a cluster) share a large depth, and then the rows, each
// of which one block adds up from both: the bits are the same in every run. Or two blocks fetch for each
// other their common part of B (gpu_ring.h).
//
// B is int8 or float8 by lines, or ternary numbers as they are packed: a byte, four of the depth of a column,
// becomes a register of the left factor.
#pragma once

#include "common/gpu_unroll.h"
#include "lowbit/gpu_wgmma.h"

namespace mdops::gpu_lowbit {

// `Depths` blocks share the depth, or `Sharers` columns of B. Warpgroups multiply in turn, each whole stages;
// another warp fetches. Ternary numbers use three warpgroups, limited by registers. Bytes of a shared depth
// use one, in blocks of which a multiprocessor holds two: so the next kernel's start before this one's end. A
// stage's place in memory always belongs to the same warpgroup: another one could mistake the parity of its
// barrier for that of earlier bytes.
template <LowBit B, int Rows, int Depths, int Sharers = 1>
struct ThinTile {
  static constexpr bool kTernary = B == LowBit::ternary;
  static constexpr int kRows = Rows, kDepths = Depths, kUnits = kTernary ? 2 : 1, kColumns = 64 * kUnits;
  static constexpr int kSharers = Sharers, kCluster = kDepths * kSharers;
  static constexpr int kResident = !kTernary && kDepths > 1 ? 2 : 1;
  static constexpr int kGroups = kTernary ? 3 : kResident > 1 ? 1 : kSharers > 1 ? 2 : 4;
  static constexpr int kThreads = kGroups * kGroupThreads;
  static constexpr int kBPlace = 0, kAPlace = kColumns * (kTernary ? kStageDepth / 4 : kStageDepth);
  static constexpr int kStageBytes = kAPlace + kRows * kStageDepth;
  static constexpr int kShare = kRows / kDepths;  // rows of a block in the end
  static constexpr int kSent = kDepths > 1 ? kShare * kColumns * 4 : 0;
  static constexpr int kMost = ((kResident > 1 ? 111 << 10 : 200 << 10) - kSent) / kStageBytes;
  static constexpr int kStages = (kMost < 16 ? kMost : 16) / kGroups * kGroups;
  static constexpr int kPitch = 4 * (kColumns + 4), kSumBytes = kRows * kPitch;  // of a warpgroup
  static constexpr int kReceived = kStages * kStageBytes;                        // the sums that others send
  static constexpr int kScales = kReceived + kSent;                              // of its rows, then columns
  static constexpr int kBarriers = kScales + 4 * (kShare + kColumns);
  static constexpr int kArrived = kBarriers + 16 * kStages;  // a barrier that counts them
  static constexpr int kShared = kArrived + 8 + 1024;        // lines begin on 1,024 bytes
  static_assert(kCluster <= 2);
  static_assert(kSharers == 1 || !kTernary);
  static_assert(kGroups * kSumBytes <= kReceived);
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// `multiply_bytes` of integers with A in registers, those of `mma.sync` for each warp's 16 rows.
#define MDOPS_THIN(SIZE, N, A_AT, B_AT, ADD_AT)                                                             \
  MDOPS_D void multiply_bytes(int (&d)[SIZE], const uint32_t (&a)[4], uint64_t b, int add) {                \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " ADD_AT ", 0;\nwgmma.mma_async.sync.aligned.m64n" N \
                 "k32.s32.s8.s8 {" MDOPS_REGISTERS_##SIZE "}, {" A_AT "}, " B_AT ", add;\n}"                \
                 : MDOPS_NUMBERS_##SIZE("+r", d, 0)                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                           \
  }
MDOPS_THIN(8, "16", "%8, %9, %10, %11", "%12", "%13")
MDOPS_THIN(16, "32", "%16, %17, %18, %19", "%20", "%21")
MDOPS_THIN(32, "64", "%32, %33, %34, %35", "%36", "%37")
#undef MDOPS_THIN

// Eight ternary numbers, those of two bytes of `packed`: a selector of four bits for each, which picks it.
template <int First>
MDOPS_D void spread_two(uint32_t packed, uint32_t& low, uint32_t& high) {
  constexpr uint32_t kNumbers = 0xfffe0100u;  // by their codes
  uint32_t x = __byte_perm(packed, 0, First == 0 ? 0x4140 : 0x4342);
  x = (x | x << 4) & 0x0f0f0f0fu;
  x = (x | x << 2) & 0x33333333u;
  low = __byte_perm(kNumbers, kNumbers, x);
  high = __byte_perm(kNumbers, kNumbers, x >> 16);
}

template <class T>
struct ThinRing : StageRing<T, T::kSharers, 4> {
  using StageRing<T, T::kSharers, 4>::stage;

  __device__ uint64_t rows() const { return wide_matrix(stage() + T::kAPlace); }

  // sums (+)= the products of this stage.
  template <LowBit A, LowBit B, class Number, int Size>
  MDOPS_D void multiply(Number (&sums)[Size], int, int, int add) const {
    const uint64_t a = rows(), b = wide_matrix(stage() + T::kBPlace);
    begin_products();
    multiply_bytes<B, A>(sums, b, a, add);
#pragma unroll
    for (int step = 1; step < kStageDepth / 32; ++step)
      multiply_bytes<B, A>(sums, b + 2 * step, a + 2 * step, 1);
    commit_products();
  }
};

// A warpgroup's sums of every T::kGroups-th stage. Float8: the sums of each stage are added up in float32.
template <LowBit A, LowBit B, class T, class Number, int Size>
MDOPS_D void sum_bytes(ThinRing<T>& ring, int group, int count, Number (&sums)[Size]) {
  constexpr bool kFloat = std::is_same_v<Number, float>;
  for (int stage = group; stage < count; stage += T::kGroups, ring.advance(T::kGroups)) {
    wait_for(ring.full(ring.slot), ring.phase);
    Number own[Size];
    Number(&d)[Size] = kFloat ? own : sums;
    ring.template multiply<A, B>(d, 0, 0, !kFloat);
    wait_for_products<0>();
    fence_operands(d);
    ring.release(ring.slot);
    if constexpr (kFloat)
#pragma unroll
      for (int k = 0; k < Size; ++k) sums[k] = __fadd_rn(sums[k], d[k]);
  }
}

// Ternary. A lane has columns 4 (lane / 4) .. + 3 of its warp's 32: byte 2 u + h of a word is
// row 8 h + lane / 4 of the warp's 16 of unit u.
template <class T, int Size>
MDOPS_D void sum_ternary(ThinRing<T>& ring, int group, int count, int (&sums)[2][Size]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kGroupThreads / 32;
  const int quad = lane % 4, piece = 2 * warp + lane / 16;
  const uint32_t own = quad * 128 + lane / 4 % 4 * 4;
  const uint32_t near = 16 * (piece ^ quad), far = 16 * (piece ^ (quad + 4)) + 4 * 128;
  constexpr int kSteps = Size < 32 ? 4 : 2;  // at once, limited by registers
  for (int stage = group; stage < count; stage += T::kGroups, ring.advance(T::kGroups)) {
    wait_for(ring.full(ring.slot), ring.phase);
#pragma unroll
    for (int begin = 0; begin < kStageDepth / 32; begin += kSteps) {
      uint32_t b[kSteps][2][4];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint32_t at = ring.stage() + T::kBPlace + own + (begin + step) * 8 * 128;
        const uint32_t first = shared_word(at + near), second = shared_word(at + far);
        spread_two<0>(first, b[step][0][0], b[step][0][1]);
        spread_two<0>(second, b[step][0][2], b[step][0][3]);
        spread_two<2>(first, b[step][1][0], b[step][1][1]);
        spread_two<2>(second, b[step][1][2], b[step][1][3]);
      }
      const uint64_t a = ring.rows() + 2 * begin;
      begin_products();
      unrolled<kSteps, 2>([&](int step, int u) { multiply_bytes(sums[u], b[step][u], a + 2 * step, 1); });
      commit_products();
      wait_for_products<0>();
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        fence_operands(sums[u]);
        unrolled<kSteps, 4>([&](int step, int k) { asm volatile("" ::"r"(b[step][u][k]) : "memory"); });
      }
    }
    ring.release(ring.slot);
  }
}

MDOPS_D void put_number(uint32_t at, int x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
MDOPS_D void put_number(uint32_t at, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(x) : "memory");
}

// Writes a warpgroup's sums to its part of the block's memory, rows of A by columns of B.
template <class T, class Number, int Size>
MDOPS_D void put_thin(uint32_t shared, int group, const Number (&sums)[T::kUnits][Size]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % kGroupThreads / 32, row = 2 * (lane % 4);
  unrolled<Size / 4, 2>([&](int j, int c) {
    const uint32_t at = shared + group * T::kSumBytes + (8 * j + row + c) * T::kPitch;
    if constexpr (T::kTernary) {
      asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at + 4 * (32 * warp + 4 * (lane / 4))),
                   "r"(sums[0][4 * j + c]), "r"(sums[0][4 * j + 2 + c]), "r"(sums[1][4 * j + c]),
                   "r"(sums[1][4 * j + 2 + c])
                   : "memory");
    } else {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        put_number(at + 4 * (16 * warp + 8 * h + lane / 4), sums[0][4 * j + 2 * h + c]);
    }
  });
}

// Four numbers to a block of the cluster, at the address that they would have here, counted by its barrier: a
// barrier of the cluster would wait for all that its threads have written.
MDOPS_D void send_words(uint32_t at, uint32_t barrier, int block, const int (&x)[4]) {
  asm volatile(
      "{\n.reg .b32 there, counted;\nmapa.shared::cluster.u32 there, %0, %2;\n"
      "mapa.shared::cluster.u32 counted, %1, %2;\n"
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], {%3, %4, %5, %6}, "
      "[counted];\n}" ::"r"(at),
      "r"(barrier), "r"(block), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
      : "memory");
}
MDOPS_D void send_words(uint32_t at, uint32_t barrier, int block, const float (&x)[4]) {
  const int bits[4] = {__float_as_int(x[0]), __float_as_int(x[1]), __float_as_int(x[2]),
                       __float_as_int(x[3])};
  send_words(at, barrier, block, bits);
}
MDOPS_D void add_words(int (&sums)[4], const uint4& w) {
  sums[0] += static_cast<int>(w.x), sums[1] += static_cast<int>(w.y);
  sums[2] += static_cast<int>(w.z), sums[3] += static_cast<int>(w.w);
}
MDOPS_D void add_words(float (&sums)[4], const uint4& w) {
  sums[0] = __fadd_rn(sums[0], __uint_as_float(w.x)), sums[1] = __fadd_rn(sums[1], __uint_as_float(w.y));
  sums[2] = __fadd_rn(sums[2], __uint_as_float(w.z)), sums[3] = __fadd_rn(sums[3], __uint_as_float(w.w));
}
// Converts four numbers for storing.
MDOPS_D uint4 packed(float*, const float (&x)[4]) {
  return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]),
                    __float_as_uint(x[3]));
}
template <class Out>
MDOPS_D uint2 packed(Out* kind, const float (&x)[4]) {
  return make_uint2(two_of(kind, x[0], x[1]), two_of(kind, x[2], x[3]));
}
template <class Out>
MDOPS_D void store_four(const Product& p, int row, int col, const float (&x)[4]) {
  Out* to = static_cast<Out*>(p.out) + static_cast<int64_t>(row) * p.cols + col;
  const auto words = packed(static_cast<Out*>(nullptr), x);
  if (p.cols % 4 == 0) {
    *reinterpret_cast<std::remove_const_t<decltype(words)>*>(to) = words;
  } else {
    const Out* four = reinterpret_cast<const Out*>(&words);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (col + k < p.cols) to[k] = four[k];
  }
}

// Copies the scales of a block's rows and columns to its shared memory.
template <class T>
MDOPS_D void copy_scales(const Product& p, int row0, int col0, uint32_t shared) {
  constexpr int kAll = T::kShare + T::kColumns;
#pragma unroll
  for (int i = 0; i < (kAll + T::kThreads - 1) / T::kThreads; ++i) {
    const int k = threadIdx.x + i * T::kThreads;
    if (k < T::kShare)
      copy_scale(shared + 4 * k, p.a_scale, p.a_step, row0 + k, p.rows);
    else if (k < kAll)
      copy_scale(shared + 4 * k, p.b_scale, p.b_step, col0 + k - T::kShare, p.cols);
  }
}

// This thread's numbers in `Rows` rows of a tile: four columns in every kApart-th row.
template <class T, class Number, int Rows>
struct ThinPart {
  static constexpr int kPieces = T::kColumns / 4, kApart = T::kThreads / kPieces;
  static constexpr int kCount = (Rows + kApart - 1) / kApart;
  Number sums[kCount][4] = {};

  __device__ static int piece() { return threadIdx.x % kPieces; }
  __device__ static int row(int i) { return threadIdx.x / kPieces + i * kApart; }
  __device__ static bool has(int i) { return Rows % kApart == 0 || row(i) < Rows; }

  // The sums += those in shared memory, in rows `pitch` bytes apart.
  MDOPS_D void add(uint32_t shared, int pitch) {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (has(i)) add_words(sums[i], shared_words(shared + row(i) * pitch + 16 * piece()));
  }
  // The same of all warpgroups, in their order.
  MDOPS_D void add_groups(uint32_t shared) {
#pragma unroll
    for (int group = 0; group < T::kGroups; ++group) add(shared + group * T::kSumBytes, T::kPitch);
  }
  // C from row `first_row` on, with the scales that `copy_scales` copied.
  template <class Out>
  MDOPS_D void store(const Product& p, uint32_t scales, int first_row, int col0) const {
    const int col = col0 + 4 * piece();
    float a[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (has(i)) a[i] = __uint_as_float(shared_word(scales + 4 * row(i)));
    const uint4 words = shared_words(scales + 4 * T::kShare + 16 * piece());
    const float b[4] = {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
                        __uint_as_float(words.w)};
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (!has(i) || first_row + row(i) >= p.rows || col >= p.cols) continue;
      float x[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) x[k] = __fmul_rn(__fmul_rn(as_float(sums[i][k]), b[k]), a[i]);
      store_four<Out>(p, first_row + row(i), col, x);
    }
  }
  MDOPS_D void store(const Product& p, uint32_t scales, int first_row, int col0) const {
    if (p.out_kind == LowBitOut::float32)
      store<float>(p, scales, first_row, col0);
    else if (p.out_kind == LowBitOut::bfloat16)
      store<__nv_bfloat16>(p, scales, first_row, col0);
    else
      store<__half>(p, scales, first_row, col0);
  }
};

#endif

template <LowBit A, LowBit B, class T>
__global__ void __launch_bounds__(T::kThreads + 32, T::kResident)
    thin_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                const Product p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Number = std::conditional_t<A == LowBit::int8, int, float>;
  constexpr bool kShares = T::kDepths > 1, kInTurns = T::kGroups > 1;
  extern __shared__ __align__(128) uint8_t memory[];
  // Of the blocks that share a depth, and of those that share columns.
  const int rank = kShares ? cluster_rank() : 0, part = T::kSharers > 1 ? cluster_rank() : 0;
  ThinRing<T> ring{(shared_address(memory) + 1023) & ~1023u, part};
  const int role = warp_index() / kGroupWarps;
  const uint32_t scales = ring.shared + T::kScales, arrived = ring.shared + T::kArrived;
  if (threadIdx.x == 0) {
    prefetch_map(&a_map), prefetch_map(&b_map);
    if constexpr (kShares) init_barrier(arrived, 1);
    ring.make();
    if constexpr (kShares) expect_bytes(arrived, T::kShare * T::kColumns * 4);
  }
  __syncthreads();
  if constexpr (T::kCluster > 1) arrive_in_cluster();
  // Work that needs no other kernel's results comes before the wait for them.
  const int stages = (p.depth + kStageDepth - 1) / kStageDepth;
  const int first = stages * rank / T::kDepths, count = stages * (rank + 1) / T::kDepths - first;
  constexpr int kTall = T::kRows * T::kSharers;
  const int row_tiles = (p.rows + kTall - 1) / kTall, index = blockIdx.x / T::kCluster;
  const int row0 = (index % row_tiles * T::kSharers + part) * T::kRows;
  const int col0 = index / row_tiles * T::kColumns, own_row0 = row0 + rank * T::kShare;
  follow_kernels();
  if constexpr (T::kSharers > 1) wait_for_cluster();

  if (role == T::kGroups) {
    if (threadIdx.x % 32 == 0) {
      for (int stage = first; stage < first + count; ++stage)
        ring.fill(a_map, b_map, stage * kStageDepth, row0, col0);
      ring.drain();
    }
    __syncwarp();
  } else {
    copy_scales<T>(p, own_row0, col0, scales);
    Number sums[T::kUnits][T::kRows / 2];
    if constexpr (kInTurns || A != LowBit::int8)  // sum_whole begins with a product
      unrolled<T::kUnits, T::kRows / 2>([&](int u, int k) { sums[u][k] = 0; });
    if constexpr (kInTurns) ring.advance(role);
    if constexpr (T::kTernary)
      sum_ternary(ring, role, count, sums);
    else if constexpr (kInTurns)
      sum_bytes<A, B>(ring, role, count, sums[0]);
    else if constexpr (A == LowBit::int8)
      sum_whole(ring, 0, count, sums[0]);
    else
      sum_in_turns<A, B, false>(ring, p, 0, count, col0, sums[0]);
    wait_for_copies();
    sync_threads(3, T::kThreads);  // all have read the stages
    put_thin<T>(ring.shared, role, sums);
    sync_threads(3, T::kThreads);
  }
  if constexpr (kShares) wait_for_cluster();  // both blocks are there
  if (role == T::kGroups) return;
  ThinPart<T, Number, T::kShare> own;
  if constexpr (kShares) {
    constexpr int kLine = 4 * T::kColumns, kShareBytes = T::kShare * T::kPitch;
    const int other = rank ^ 1;
    const uint32_t received = ring.shared + T::kReceived;
    ThinPart<T, Number, T::kShare> theirs;
    theirs.add_groups(ring.shared + other * kShareBytes);
#pragma unroll
    for (int i = 0; i < theirs.kCount; ++i)
      if (theirs.has(i))
        send_words(received + theirs.row(i) * kLine + 16 * theirs.piece(), arrived, other, theirs.sums[i]);
    own.add_groups(ring.shared + rank * kShareBytes);
    wait_in_cluster(arrived, 0);
    own.add(received, kLine);
  } else {
    own.add_groups(ring.shared);
  }
  own.store(p, scales, own_row0, col0);
#else
  static_cast<void>(p);
#endif
}

}  // namespace mdops::gpu_lowbit
