// Division of indices on a GPU.
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {

// k / n. For 32-bit numbers, which are usual, that takes a tenth of the instructions.
struct Quotient {
  int64_t whole, rest;
};

MDOPS_D Quotient divided(int64_t k, int64_t n) {
  if ((k | n) >> 32 != 0) return {k / n, k % n};
  const uint32_t whole = static_cast<uint32_t>(k) / static_cast<uint32_t>(n);
  return {whole, static_cast<uint32_t>(k) - whole * static_cast<uint32_t>(n)};
}

}  // namespace mdops
