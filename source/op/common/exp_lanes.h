// Exponentials and maxima of vectors, for one instruction set.
#pragma once

#include "common/activation.h"
#include "common/vectors.h"

namespace mdops::MDOPS_ISA {

// exp(x) for x up to 0 and a little above, to rounding; 0 below -87 (-700 in float64).
template <class T>
MDOPS_INLINE Vector<T> exp_of(const Vector<T>& x) {
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
MDOPS_INLINE Vector<T> larger(const Vector<T>& a, const Vector<T>& b) {
  using I = VectorIndex<T>;
  const I first = a > b;
  return (Vector<T>)(((I)a & first) | ((I)b & ~first));
}

}  // namespace mdops::MDOPS_ISA
