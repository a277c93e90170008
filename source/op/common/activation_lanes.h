// Activation functions of vectors of numbers, for one instruction set. SiLU in float32 has its own formula
// with half the instructions of `activate`: layers of messages spend as long in it as in products.
#pragma once

#include "common/activation.h"
#include "common/exp_lanes.h"
#include "common/vectors.h"

namespace mdops::MDOPS_ISA {

// 1 / x to rounding.
MDOPS_INLINE Vector<float> reciprocal(const Vector<float>& x) {
#if defined(MDOPS_ISA_LEVEL_v4)
  // 14 bits, and a Newton step.
  const Vector<float> guess = (Vector<float>)_mm512_rcp14_ps((__m512)x);
  return guess * (2.0f - x * guess);
#else
  return 1.0f / x;
#endif
}

// 1 / (1 + e^-x), to 2e-7 of 1: 2^t = 2^n 2^r with |r| <= 1/2 and a polynomial that was fitted to 2^r (2e-9).
MDOPS_INLINE Vector<float> sigmoid_lanes(const Vector<float>& x) {
  using V = Vector<float>;
  using Index = VectorIndex<float>;
  const float limit = 126.0f, magic = ExpConstants<float>::magic;
  V t = -1.44269504088896340736f * x;
  t = t > limit ? V{} + limit : t;
  t = t < -limit ? V{} - limit : t;
  const V shifted = t + magic, r = t - (shifted - magic);
  V sum = V{} + 1.534581242594868e-4f;
  sum = sum * r + 1.3399930903688073e-3f;
  sum = sum * r + 9.618489071726799e-3f;
  sum = sum * r + 5.550328642129898e-2f;
  sum = sum * r + 2.4022646248340607e-1f;
  sum = sum * r + 6.931471824645996e-1f;
  sum = sum * r + 1.0f;
  // The integer n stands in the lowest bits of `shifted`, and goes to where the power of two stands.
  const Index bits = __builtin_bit_cast(Index, sum) + (__builtin_bit_cast(Index, shifted) << 23);
  return reciprocal(1.0f + __builtin_bit_cast(V, bits));
}
// To rounding.
MDOPS_INLINE Vector<double> sigmoid_lanes(const Vector<double>& x) {
  const Vector<double> one = Vector<double>{} + 1.0, e = exp_of<double>(x < 0.0 ? x : -x);
  return (x < 0.0 ? e : one) / (one + e);
}

// Calls take(k, f(x), f'(x)) for the numbers x = z(k) of a vector. silut uses a loop per step: GCC makes
// branches of several steps in one.
template <Activation kind, class T, class Numbers, class Take>
MDOPS_INLINE void activate_vector(const Numbers& z, T threshold, const Take& take) {
  const auto each = [](const auto& work) {
    MDOPS_INDEPENDENT
    for (int k = 0; k < kLanes<T>; ++k) work(k);
  };
  if constexpr (kind == Activation::silut) {
    T low[kLanes<T>], beyond[kLanes<T>], end, steep;
    activate<Activation::silu>(threshold, T(0), &end, &steep);
    each([&](int k) { low[k] = z(k); });
    const T least = -ExpConstants<T>::limit;
    Vector<T> x = vector_at(low);
    x = x < least ? Vector<T>{} + least : x;
    const Vector<T> below = x < threshold ? x : Vector<T>{} + threshold;
    store(low, below), store(beyond, steep * (x - below));
    each([&](int k) { beyond[k] = tanh_upwards(beyond[k]); });
    each([&](int k) {
      T f, slope;
      activate<Activation::silu>(low[k], threshold, &f, &slope);
      take(k, f + beyond[k], slope * (T(1) - beyond[k] * beyond[k]));
    });
  } else {
    each([&](int k) {
      T f, slope;
      activate<kind>(z(k), threshold, &f, &slope);
      take(k, f, slope);
    });
  }
}

// Replaces each number x of whole vectors by take(f(x), f'(x)).
template <class T, class Take>
void activate_numbers(T* numbers, int64_t count, Activation activation, T threshold, const Take& take) {
  with_activation(activation, [&]<Activation kind>() {
    for (int64_t first = 0; first < count; first += kLanes<T>) {
      T* const at = numbers + first;
      activate_vector<kind>([&](int k) { return at[k]; }, threshold,
                            [&](int k, T y, T slope) { at[k] = take(y, slope); });
    }
  });
}

// f(x), f'(x) and f''(x) of vectors.
template <class T, bool SiLU>
struct ActivationLanes {
  using V = Vector<T>;
  static constexpr bool kOwn = SiLU && sizeof(T) == sizeof(float);

  Activation kind;
  T threshold;

  MDOPS_INLINE V value(const V& x) const {
    if constexpr (kOwn) return x * sigmoid_lanes(x);
    return value(x, nullptr, nullptr);
  }
  // Also the slope and the curvature; null if not requested.
  MDOPS_INLINE V value(const V& x, V* slope, V* curve) const {
    if constexpr (kOwn) {
      const V s = sigmoid_lanes(x), y = x * s;
      *slope = s + y * (T(1) - s);
      if (curve) *curve = (*slope - s) * (T(1) - s - s) + (s + s) * (T(1) - s);
      return y;
    } else {
      return lane_by_lane(x, slope, curve);
    }
  }

 private:
  V lane_by_lane(const V& x, V* slope, V* curve) const {
    V y, s, c;
    with_activation(SiLU ? Activation::silu : kind, [&]<Activation which>() {
      T of[kLanes<T>], to[3][kLanes<T>];
      store(of, x);
      for (int k = 0; k < kLanes<T>; ++k)
        activate_twice<which>(of[k], threshold, &to[0][k], &to[1][k], &to[2][k]);
      y = vector_at(to[0]), s = vector_at(to[1]), c = vector_at(to[2]);
    });
    if (slope) *slope = s;
    if (curve) *curve = c;
    return y;
  }
};

// Calls work(lanes) with the function of numbers z, `count` of them in whole vectors: silu for silut, if all
// are below its threshold.
template <class T, class Work>
inline void with_activation_lanes(Activation kind, T threshold, bool is_below, const Work& work) {
  if (kind == Activation::silu || (kind == Activation::silut && is_below))
    work(ActivationLanes<T, true>{Activation::silu, threshold});
  else
    work(ActivationLanes<T, false>{kind, threshold});
}

}  // namespace mdops::MDOPS_ISA
