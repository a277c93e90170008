// The kernel of a net as one chain (gpu_chain.h), of any kind.
#pragma once

#include <type_traits>

#include "gemm/gpu_chain_columns.h"
#include "gemm/gpu_chain_rows.h"

namespace mdops {

template <int Kind, int Fixed, int Parts>
__global__ void __launch_bounds__(kChainThreads, 1) chain_kernel(const __grid_constant__ ChainArgs p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char unaligned[];
  char* const memory = unaligned + (-shared_address(unaligned) & 1023);
  using Memory = ChainMemory<Kind>;
  using Thread = std::conditional_t<Memory::kKind.by_rows(), RowThread<Kind, Fixed, Parts>,
                                    ColumnThread<Kind, Fixed, Parts>>;
  const uint32_t shared = shared_address(memory);
  const int type = p.tile_type[blockIdx.x], warp = warp_index();
  if (type < 0) return;
  if (threadIdx.x == 0) {
    for (int k = 0; k < Memory::kSlots; ++k) {
      init_barrier(shared + Memory::kFull + 8 * k, 1);
      init_barrier(shared + Memory::kEmpty + 8 * k, kChainWarps);
    }
    for (int k = 0; k < Memory::kSlotsA; ++k) {
      init_barrier(shared + Memory::kFullA + 8 * k, 1);
      init_barrier(shared + Memory::kEmptyA + 8 * k, kChainWarps);
    }
    publish_barriers();
    fence_shared();
  }
  __syncthreads();
  const float* net = p.nets + type * p.net_size;
  if (warp >= kChainWarps) {
    keep_registers<kFewRegisters>();
    if (lane_index() == 0) {
      if (warp == kChainWarps) fetch_weights<Kind, Parts>(p, net + p.units, shared);
      if (warp == kChainWarps + 1) fetch_inputs<Kind, Parts>(p, shared);
    }
    __syncwarp();
  } else {
    take_registers<kMostRegisters>();
    Thread(p, net, static_cast<float>(p.scale[type]), memory, warp).run();
  }
#endif
}

}  // namespace mdops
