// Input of Hopper's kernels of low-bit products: a ring of stages in shared memory that the tensor copy
// engine fills and warpgroups read, and clusters of blocks, tiles of C below each other, that share columns
// of B: each fetches its part of them for all.
#pragma once

#include <cuda.h>

#include "common/gpu_barrier.h"
#include "common/gpu_wgmma.h"
#include "lowbit/gpu_mma.h"

namespace mdops::gpu_lowbit {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

MDOPS_D void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

MDOPS_D void fetch(uint32_t shared, const CUtensorMap* map, int k, int line, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], "
      "[%4];" ::"r"(shared),
      "l"(map), "r"(k), "r"(line), "r"(barrier)
      : "memory");
}

// `Lines` lines of a stage. This block fetches `part` of `Sharers` parts, to the same place in all sharers,
// counted by each one's barrier.
template <int Sharers, int Lines>
MDOPS_D void fetch_part(uint32_t shared, const CUtensorMap* map, int k, int line, int part,
                        uint32_t barrier) {
  if constexpr (Sharers == 1) return fetch(shared, map, k, line, barrier);
  static_assert(Lines % (8 * Sharers) == 0);  // swizzled lines come in eights
  const int own = part * (Lines / Sharers);
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%2, %3}], [%4], %5;" ::"r"(shared + own * kStageDepth),
      "l"(map), "r"(k), "r"(line + own), "r"(barrier), "h"(static_cast<uint16_t>((1 << Sharers) - 1))
      : "memory");
}

MDOPS_D int cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// Arrives at the barrier with this address in another block of the cluster.
MDOPS_D void arrive_at(uint32_t barrier, int block) {
  asm volatile(
      "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(block)
      : "memory");
}

// A barrier of all threads of a cluster: its blocks have started. Of earlier writes, only the barriers from
// `StageRing::make` are visible; waiting for all others would take as long as a write to device memory.
MDOPS_D void arrive_in_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
MDOPS_D void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// A block's position in its ring of stages of T. Each stage has a barrier that counts the arriving bytes, and
// one that counts the warps that have finished with it: `Warps` in each of the `Sharers` blocks that read
// what this one, `part` of them, fetches.
template <class T, int Sharers, int Warps>
struct StageRing {
  uint32_t shared;
  int part;
  int slot = 0;
  uint32_t phase = 0;

  __device__ uint32_t stage() const { return shared + slot * T::kStageBytes; }
  __device__ uint32_t full(int s) const { return shared + T::kBarriers + 8 * s; }
  __device__ uint32_t empty(int s) const { return full(s) + 8 * T::kStages; }
  __device__ void make() const {
    for (int s = 0; s < T::kStages; ++s) {
      init_barrier(full(s), 1);
      init_barrier(empty(s), Warps * Sharers);
    }
    publish_barriers();
  }
  __device__ void advance(int stages = 1) {
    slot += stages;
    if (slot >= T::kStages) slot -= T::kStages, phase ^= 1;
  }
  // Bytes of a neighbor may come before they are expected here: the barrier waits for this arrival, too.
  __device__ void fill(const CUtensorMap& a, const CUtensorMap& b, int k, int row, int col) {
    wait_for(empty(slot), phase ^ 1);
    expect_bytes(full(slot), T::kStageBytes);
    fetch(stage() + T::kAPlace, &a, k, row, full(slot));
    if constexpr (T::kTernary)
      fetch(stage() + T::kBPlace, &b, col, k / 4, full(slot));
    else
      fetch_part<Sharers, T::kColumns>(stage() + T::kBPlace, &b, k, col, part, full(slot));
    advance();
  }
  // Waits until all fetched data has been read, as nobody arrives at these barriers after that. So no block
  // ends before another may.
  __device__ void drain() {
    if constexpr (Sharers > 1)
      for (int s = 0; s < T::kStages; ++s, advance()) wait_for(empty(slot), phase ^ 1);
  }
  __device__ void release(int done) const {
    const int lane = threadIdx.x % 32;
    if (lane >= Sharers) return;
    if constexpr (Sharers > 1)
      arrive_at(empty(done), lane);
    else
      arrive(empty(done));
  }
};

#endif

// Lines of a factor for the copy engine: boxes of kStageDepth by `lines`, swizzled.
inline void map_factor(const Gpu& gpu, const Factor& f, int64_t depth, int lines, CUtensorMap* map) {
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
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(depth), static_cast<cuuint64_t>(f.lines)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(f.stride)};
  const cuuint32_t box[2] = {kStageDepth, static_cast<cuuint32_t>(lines)}, steps[2] = {1, 1};
  if (encode == nullptr ||
      encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<uint8_t*>(f.data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
    gpu.refuse("the driver maps no tensor for the copy engine");
}

}  // namespace mdops::gpu_lowbit
