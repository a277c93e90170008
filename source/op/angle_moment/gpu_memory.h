// Memory of the warps of angles: shared memory, or global if that is too small.
#pragma once

#include <algorithm>

#include "angle_moment/gpu_kernels.h"
#include "common/gpu.h"

namespace mdops::gpu_angle {

// Blocks of one warp each that loop over all atoms if their memory is global: enough to keep a GPU busy.
constexpr int64_t kBlocksOfAll = 4096;

struct WarpMemory {
  int64_t bytes, blocks, shared;  // of each block; number of blocks; its shared part

  WarpMemory(const GpuLimits& limits, int64_t bytes_, int64_t atoms)
      : bytes(bytes_), blocks(atoms), shared(bytes_) {
    if (bytes <= limits.shared_bytes) return;
    blocks = std::min(atoms, kBlocksOfAll), shared = 0;
  }
  int64_t global() const { return shared ? 0 : blocks * bytes; }
  char* of(void* memory) const { return shared ? nullptr : static_cast<char*>(memory); }
};

}  // namespace mdops::gpu_angle
