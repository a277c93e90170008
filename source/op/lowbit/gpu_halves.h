// Low-bit products of bytes of some hundred rows by Hopper's warpgroups, in tiles of 64 columns whose depth
// two blocks (a cluster) share, as in gpu_thin.h. Each block multiplies the half of the rows that the other
// finishes, sends it those sums, and multiplies its own half while they are on their way: so nobody waits for
// an exchange. B's stages stay in shared memory for the second half, so a block fetches each number of its
// part once. Where memory does not hold all of B's stages, both halves are multiplied for one run of stages
// after the other.
#pragma once

#include "lowbit/gpu_thin.h"

namespace mdops {
namespace gpu_lowbit {

// One warpgroup multiplies; a warp more fetches. Resident: blocks that a multiprocessor holds, two of them
// with less memory each. Stages are A's, of half of the rows.
template <int Rows, int Resident>
struct HalvesTile {
  static constexpr bool kTernary = false;
  static constexpr int kRows = Rows, kBlocks = 2, kResident = Resident, kUnits = 1, kColumns = 64;
  static constexpr int kShare = kRows / kBlocks, kThreads = kGroupThreads;
  static constexpr int kStageBytes = kShare * kStageDepth, kBBytes = kColumns * kStageDepth;
  static constexpr int kStages = Resident > 1 ? (96 << 10) / (kStageBytes + kBBytes) : 10;
  static constexpr int kKept = Resident > 1 ? kStages : 16;  // of B
  static constexpr int kPitch = 4 * (kColumns + 4), kSumBytes = kShare * kPitch;
  static constexpr int kSent = kShare * kColumns * 4;
  static constexpr int kB = kStages * kStageBytes;
  static constexpr int kReceived = kB + kKept * kBBytes;  // the sums that the other block sends
  static constexpr int kScales = kReceived + kSent;
  static constexpr int kBarriers = kScales + 4 * (kShare + kColumns);
  static constexpr int kArrived = kBarriers + 16 * kStages;  // a barrier that counts them
  static constexpr int kShared = kArrived + 8;
  // A place for B is filled anew when A's stage kStages before is read: it has been read by then.
  static_assert(kStages <= kKept);
  static_assert(kSumBytes <= kB);
  static_assert(Resident * (kShared + 1024) <= 228 << 10);
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Of A's stages, with B's beside them.
template <class T>
struct HalvesRing : StageRing<T, 4> {
  using Base = StageRing<T, 4>;
  using Base::empty;
  using Base::full;
  using Base::phase;
  using Base::shared;
  using Base::slot;
  using Base::stage;
  int place = 0;  // of B

  __device__ uint32_t columns() const { return shared + T::kB + place * T::kBBytes; }
  __device__ void advance() {
    if (++slot == T::kStages) slot = 0, phase ^= 1;
    if (++place == T::kKept) place = 0;
  }
  // A's barrier counts B's bytes, too.
  __device__ void fill(const CUtensorMap& a, const CUtensorMap& b, int k, int row, int col, bool with_b) {
    wait_for(empty(slot), phase ^ 1);
    expect_bytes(full(slot), T::kStageBytes + (with_b ? T::kBBytes : 0));
    if (with_b) fetch(columns(), &b, k, col, full(slot));
    fetch(stage(), &a, k, row, full(slot));
    advance();
  }
  __device__ void release(int done) const {
    if (threadIdx.x % 32 == 0) arrive(empty(done));
  }
  template <LowBit A, LowBit B, class Number, int Size>
  __device__ __forceinline__ void multiply(Number (&sums)[Size], int, int, int add) const {
    multiply_stage<A, B>(sums, wide_matrix(stage()), wide_matrix(columns()), add);
  }
};

// A block's part of the depth, stages first .. last - 1, in runs of what memory holds of B.
template <class T>
struct Runs {
  int first, count, runs;

  __device__ Runs(int depth, int rank) {
    const int stages = (depth + kStageDepth - 1) / kStageDepth;
    first = stages * rank / T::kBlocks;
    count = stages * (rank + 1) / T::kBlocks - first;
    runs = (count + T::kKept - 1) / T::kKept;
  }
  __device__ int begin(int run) const { return first + count * run / runs; }
};

// The other block's sums: each thread has those of the same places there.
template <class T, class Number, int Size>
__device__ __forceinline__ void send_sums(uint32_t shared, int other, const Number (&sums)[Size]) {
#pragma unroll
  for (int k = 0; k < Size; k += 4) {
    const Number four[4] = {sums[k], sums[k + 1], sums[k + 2], sums[k + 3]};
    send_words(shared + T::kReceived + 4 * (k * T::kThreads + 4 * threadIdx.x), shared + T::kArrived, other,
               four);
  }
}
template <class T, class Number, int Size>
__device__ __forceinline__ void add_received(uint32_t shared, Number (&sums)[Size]) {
#pragma unroll
  for (int k = 0; k < Size; k += 4) {
    Number four[4] = {sums[k], sums[k + 1], sums[k + 2], sums[k + 3]};
    add_words(four, shared_words(shared + T::kReceived + 4 * (k * T::kThreads + 4 * threadIdx.x)));
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[k + i] = four[i];
  }
}

#endif

template <LowBit A, LowBit B, class T>
__global__ void __launch_bounds__(T::kThreads + 32, T::kResident)
    halves_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                  const Product p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Number = std::conditional_t<A == LowBit::int8, int, float>;
  extern __shared__ __align__(1024) uint8_t lines[];
  HalvesRing<T> ring{shared_address(lines)};
  const int rank = cluster_rank(), other = rank ^ 1;
  const uint32_t arrived = ring.shared + T::kArrived, scales = ring.shared + T::kScales;
  if (threadIdx.x == 0) {
    prefetch_map(&a_map), prefetch_map(&b_map);
    init_barrier(arrived, 1);
    ring.make();
    expect_bytes(arrived, T::kSent);
  }
  __syncthreads();
  arrive_in_cluster();
  follow_kernels();

  const Runs<T> part(p.depth, rank);
  const int row_tiles = (p.rows + T::kRows - 1) / T::kRows, index = blockIdx.x / T::kBlocks;
  const int row0 = index % row_tiles * T::kRows, col0 = index / row_tiles * T::kColumns;
  const int own_row0 = row0 + rank * T::kShare;
  if (warp_index() == kGroupWarps) {
    if (threadIdx.x % 32 == 0)
      for (int run = 0; run < part.runs; ++run)
        for (int half = 0, place = ring.place; half < 2; ++half) {
          ring.place = place;
          const int row = half == 0 ? row0 + other * T::kShare : own_row0;
          for (int stage = part.begin(run); stage < part.begin(run + 1); ++stage)
            ring.fill(a_map, b_map, stage * kStageDepth, row, col0, half == 0);
        }
    __syncwarp();
    wait_for_cluster();
    return;
  }
  copy_scales<T>(p, own_row0, col0, scales);
  Number sums[T::kUnits][T::kShare / 2] = {}, others[T::kShare / 2] = {};
  const auto sum = [&](int count, Number(&to)[T::kShare / 2]) {
    if constexpr (A == LowBit::int8)
      sum_whole(ring, 0, count, to, 1);
    else
      sum_in_turns<A, B, false>(ring, p, 0, count, col0, to);
  };
  for (int run = 0; run < part.runs; ++run) {
    const int place = ring.place, count = part.begin(run + 1) - part.begin(run);
    sum(count, others);
    if (run + 1 == part.runs) {
      wait_for_cluster();  // the other block is there
      send_sums<T>(ring.shared, other, others);
    }
    ring.place = place;
    sum(count, sums[0]);
  }
  wait_for_others(arrived);
  add_received<T>(ring.shared, sums[0]);
  wait_for_copies();
  sync_all<T::kThreads>();  // all have read the stages
  put_thin<T>(ring.shared, 0, sums);
  sync_all<T::kThreads>();
  sum_parts<T, Number, 1, T::kShare>(ring.shared, T::kPitch, 0, [&](int row, const Number(&four)[4]) {
    store_scaled<T>(p, scales, own_row0, col0, row, four);
  });
#else
  static_cast<void>(p);
#endif
}

}  // namespace gpu_lowbit
}  // namespace mdops
