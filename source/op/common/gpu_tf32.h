// Products of float32 by the tensor cores, with float32's accuracy: each number is the sum of two TF32
// numbers (common/gpu_split.h), and the smallest of their four products is omitted.
#pragma once

#include "common/gpu_mma.h"
#include "common/gpu_split.h"

namespace mdops {

MDOPS_D float2 read_two(const float* from) {
  return __ldg(reinterpret_cast<const float2*>(from));
}
MDOPS_D void write_two(float* to, float a, float b) {
  *reinterpret_cast<float2*>(to) = {a, b};
}

MDOPS_D void split_to(uint32_t& high, uint32_t& low, float x) {
  const Split parts = split(x);
  high = parts.high, low = parts.low;
}

// c = A B over eight of the depth, in two separate parts: the large products, and the small ones.
MDOPS_D void multiply_parts(float (&large)[4], float (&small)[2][4], const uint32_t (&high)[4],
                            const uint32_t (&low)[4], const uint4& b) {
  multiply_8(small[0], low, b.x, b.y);
  multiply_8(small[1], high, b.z, b.w);
  multiply_8(large, high, b.x, b.y);
}

}  // namespace mdops
