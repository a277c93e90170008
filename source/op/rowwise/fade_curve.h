// The fade of DPA-4's edges, with x = r / cutoff, and its derivatives by r:
//
//   w = (1 - x)^4 sum_k C(k + 3, 3) x^k, k below p, 1 at 0 and 0 behind the cutoff
//   w' = -c x^(p - 1) (1 - x)^3 / cutoff, c = p (p + 1) (p + 2) (p + 3) / 6, and others by the rule for
//   products
#pragma once

#include <cstdint>

#include "common/math.h"

namespace mdops {

constexpr int64_t kMostOfFade = 1000;  // exponent, and order

template <class T>
struct FadeArgs {
  int64_t count;
  T cutoff;
  int64_t exponent, order;  // p; of the derivative
  const T* r;
  T* out;

  // The derivative of x^(p - 1).
  MDOPS_HD T power(T x, int64_t times) const {
    T value = 1;
    for (int64_t k = exponent - 1; k > exponent - 1 - times; --k) value *= static_cast<T>(k);
    for (int64_t k = exponent - 1 - times; k > 0; --k) value *= x;
    return value;
  }

  // The derivative of w of that order by x, above 0.
  MDOPS_HD T slope(T x) const {
    const T v = T(1) - x, falls[4] = {v * v * v, T(-3) * v * v, T(6) * v, T(-6)};
    T sum = 0, ways = 1;  // C(order - 1, n)
    for (int64_t n = 0; n < 4 && n < order; ++n) {
      if (order - 1 - n < exponent) sum += ways * falls[n] * power(x, order - 1 - n);
      ways *= static_cast<T>(order - 1 - n) / static_cast<T>(n + 1);
    }
    const T p = static_cast<T>(exponent);
    return -sum * p * (p + T(1)) * (p + T(2)) * (p + T(3)) / T(6);
  }

  MDOPS_HD void run(int64_t k) const {
    T x = r[k] / cutoff;
    if (order > 0 && (x < T(0) || x > T(1))) {  // NaN is neither
      out[k] = 0;
      return;
    }
    x = x < T(0) ? T(0) : x > T(1) ? T(1) : x;
    T value;
    if (order > 0) {
      value = slope(x) + T(0) * x;
      for (int64_t n = 0; n < order; ++n) value /= cutoff;
    } else {
      T binomial = 1, power_of_x = 1;
      value = 0;
      for (int64_t n = 0; n < exponent; ++n) {
        value += binomial * power_of_x;
        binomial *= static_cast<T>(n + 4) / static_cast<T>(n + 1), power_of_x *= x;
      }
      const T v = T(1) - x;
      value *= v * v * v * v;
    }
    out[k] = value;
  }
};

}  // namespace mdops
