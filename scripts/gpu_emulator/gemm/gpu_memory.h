// Replaces source/op/gemm/gpu_memory.h.
#pragma once

namespace mdops {

inline char* net_memory() {
  return emulated_memory();
}

}  // namespace mdops
