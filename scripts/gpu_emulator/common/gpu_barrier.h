// In the place of source/op/common/gpu_barrier.h: its barriers of a block's threads on the emulated GPU.
#pragma once

namespace mdops {

inline void sync_threads(int, int threads) {
  emulated_team_barrier(threads);
}

}  // namespace mdops
