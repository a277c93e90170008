// Exponentials and larger numbers of vectors, for one instruction set.
#pragma once

#include "common/activation.h"
#include "common/vectors.h"

namespace mdops {
namespace MDOPS_ISA {

// exp(x) for x up to 0 and a little above, to rounding; 0 below -87 (-700 in float64).
template <class T>
inline __attribute__((always_inline)) Vector<T> exp_of(const Vector<T>& x) {
  using C = ExpConstants<T>;
  using V = Vector<T>;
  using I = VectorIndex<T>;
  const V shifted = x * T(1.44269504088896340736) + C::magic, n = shifted - C::magic;
  const V r = (x - n * C::ln2_high) - n * C::ln2_low;
  T factorial = 1;
  for (int k = 2; k <= C::degree; ++k) factorial *= T(k);
  T coefficient = T(1) / factorial;
  V sum = V{} + coefficient;
  MDOPS_UNROLL
  for (int k = C::degree; k >= 1; --k) {
    coefficient *= T(k);
    sum = sum * r + coefficient;
  }
  const I bits = ((I)shifted + C::bias) << C::mantissa;
  const I small = x < -C::limit;
  return (V)((I)(sum * (V)bits) & ~small);
}

template <class T>
inline __attribute__((always_inline)) Vector<T> larger(const Vector<T>& a, const Vector<T>& b) {
  using I = VectorIndex<T>;
  const I first = a > b;
  return (Vector<T>)(((I)a & first) | ((I)b & ~first));
}

// Of the numbers in all lanes, by halves.
template <class T, int Lanes>
struct LaneLargest {
  typedef T Whole __attribute__((vector_size(Lanes * sizeof(T))));
  typedef T Half __attribute__((vector_size(Lanes / 2 * sizeof(T))));
  struct Halves {
    Half low, high;
  };

  static inline __attribute__((always_inline)) T of(const Whole& v) {
    const Halves halves = __builtin_bit_cast(Halves, v);
    return LaneLargest<T, Lanes / 2>::of(halves.low > halves.high ? halves.low : halves.high);
  }
};
template <class T>
struct LaneLargest<T, 2> {
  typedef T Whole __attribute__((vector_size(2 * sizeof(T))));
  static inline __attribute__((always_inline)) T of(const Whole& v) { return v[0] > v[1] ? v[0] : v[1]; }
};

template <class T>
inline __attribute__((always_inline)) T largest_lane(const Vector<T>& v) {
  return LaneLargest<T, kLanes<T>>::of(v);
}

}  // namespace MDOPS_ISA
}  // namespace mdops
