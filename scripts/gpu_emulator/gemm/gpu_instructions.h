// In the place of source/op/gemm/gpu_instructions.h: what the block by mma.sync needs of it, on the emulated GPU.
#pragma once

#include "common/copy_async.h"
#include "warp.h"

namespace mdops {

inline char* net_memory() {
  return emulated_memory();
}
inline void load_fragment(uint32_t (&a)[4], const void* shared) {
  emulated_load_matrices(a, static_cast<const char*>(shared));
}
inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulated_multiply<false>(c, a, b0, b1);
}

}  // namespace mdops
