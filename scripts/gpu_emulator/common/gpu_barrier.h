// Replaces source/op/common/gpu_barrier.h: the same on the emulated GPU.
#pragma once

#include <cstdint>

namespace mdops {

inline void sync_threads(int, int threads) {
  emulated_team_barrier(threads);
}

inline void init_barrier(uint32_t at, int arrivals) {
  emulated_barrier_at(at) = {arrivals, arrivals};
}
inline void publish_barriers() {}
inline void expect_bytes(uint32_t barrier, int bytes) {
  emulated_barrier_at(barrier).bytes += bytes;
  emulated_arrive(barrier);
}
inline void arrive(uint32_t barrier) {
  emulated_arrive(barrier);
}
inline void wait_for(uint32_t barrier, uint32_t parity) {
  emulated_wait_at(barrier, parity);
}

}  // namespace mdops
