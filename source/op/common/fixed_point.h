// Sums that do not depend on the order of their terms: atomic additions of 64-bit integers.
//
// A term x becomes round(x * scale), where `scale` is a power of two from the largest term and the number of
// terms, so that no sum can overflow. With n terms of at most m each is rounded at m 2^(log2 n
// - 62): for 10 million pairs 1e-12 of the largest. Where that is too coarse, for float64 terms, a second
// integer holds the remainder.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/math.h"

namespace mdops {

struct FixedPoint {
  double scale,
      fine;  // of the first integer, and of its remainder: 2^bits, and terms have that many bits

  // For up to `terms` terms with magnitudes up to `largest`.
  __device__ FixedPoint(double largest, int64_t terms) {
    const int bits = 62 - (64 - __clzll(terms));
    int exponent = 0;
    frexp(largest, &exponent);
    const int power = bits - exponent;
    scale = ldexp(1.0, power < 1000 ? power : 1000);
    fine = ldexp(1.0, bits);
  }

  // The two integers of a finite term.
  __device__ void split(double x, int64_t* high, int64_t* low) const {
    const double scaled = x * scale;
    *high = __double2ll_rn(scaled);
    *low = __double2ll_rn((scaled - static_cast<double>(*high)) * fine);
  }

  __device__ double sum(int64_t high, int64_t low) const {
    return (static_cast<double>(high) + static_cast<double>(low) / fine) / scale;
  }
};

MDOPS_D void atomic_add(int64_t* at, int64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
}

// Non-negative doubles have the order of their bits.
MDOPS_D void atomic_max(double* at, double value) {
  atomicMax(reinterpret_cast<unsigned long long*>(at),
            static_cast<unsigned long long>(__double_as_longlong(value)));
}

}  // namespace mdops
