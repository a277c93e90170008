// The activation functions of DeePMD-kit's nets with their derivatives, in code that vectorises. Clamps are
// written so that NaN stays NaN: `x > limit ? limit : x`.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/math.h"

namespace mdops {

// The order is that of mdops.ops.activation.CODES.
enum class Activation : int { linear, tanh, gelu, relu, relu6, softplus, sigmoid, silu, silut };

template <class T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  using Int = int32_t;
  static constexpr float limit = 87.0f, magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
  static constexpr int mantissa = 23, bias = 127, degree = 7;
};
template <>
struct ExpConstants<double> {
  using Int = int64_t;
  static constexpr double limit = 700.0, magic = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
  static constexpr int mantissa = 52, bias = 1023, degree = 13;
};

// exp(x) - 1 to rounding, x clamped to +-limit: 2^n (e^r - 1) + (2^n - 1) with |r| <= ln2 / 2 and Taylor's
// polynomial for e^r - 1.
template <class T>
MDOPS_HD T expm1_clamped(T x) {
  using C = ExpConstants<T>;
  x = x > C::limit ? C::limit : x;
  x = x < -C::limit ? -C::limit : x;
  const T shifted = x * T(1.44269504088896340736) + C::magic, n = shifted - C::magic;
  const T r = (x - n * C::ln2_high) - n * C::ln2_low;
  T sum = 0, factorial = 1;
  for (int k = 2; k <= C::degree; ++k) factorial *= T(k);
  T coefficient = T(1) / factorial;
  for (int k = C::degree; k >= 1; --k) {
    sum = (sum + coefficient) * r;
    coefficient *= T(k);
  }
  typename C::Int bits;
  std::memcpy(&bits, &shifted, sizeof(T));  // the integer n stands in the lowest bits
  bits = (bits + C::bias) << C::mantissa;
  T scale;
  std::memcpy(&scale, &bits, sizeof(T));
  return scale * sum + (scale - T(1));
}

// a / b, on a GPU in float32 to 2 units in the last place, for b from 2^-126 to 2^126.
template <class T>
MDOPS_HD T quotient(T a, T b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 4) return __fdividef(a, b);
#endif
  return a / b;
}

#ifdef __CUDACC__
// tanh on a GPU in float32 to 4 units in the last place: a polynomial fitted to it below 0.55, the fast
// exponential above; both are worked out, so that no lane waits for another.
MDOPS_D float tanh_gpu(float x) {
  float e, inverse, result;
  const float s = x * x;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(2.88539008f * fabsf(x)));  // 2 / ln 2
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(e + 1.0f));
  float p = 0.01645913f;
  p = p * s - 0.05268433f;
  p = p * s + 0.13320945f;
  p = p * s - 0.3333296f;
  const float small = x + x * (s * p), large = copysignf(1.0f - 2.0f * inverse, x);
  asm("{\n.reg .pred low;\nsetp.lt.f32 low, %1, %2;\nselp.f32 %0, %3, %4, low;\n}"
      : "=f"(result)
      : "f"(fabsf(x)), "f"(0.55f), "f"(small), "f"(large));
  return result;
}

// softplus on a GPU in float32, and its slope: e = e^-|x| by the fast exponential, log(1 + e) / e by a
// polynomial fitted to it (2e-7 of it), no division but one fast inverse.
MDOPS_D void softplus_gpu(float x, float* y, float* slope) {
  float e, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-1.44269504f * fabsf(x)));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(e + 1.0f));
  float p = 0.005253458f;
  p = p * e - 0.029588507f;
  p = p * e + 0.07836167f;
  p = p * e - 0.1367477f;
  p = p * e + 0.1911143f;
  p = p * e - 0.2484437f;
  p = p * e + 0.3331927f;
  p = p * e - 0.49999502f;
  p = p * e + 1.0f;
  *y = (x > 0.0f ? x : 0.0f) + e * p;
  *slope = (x > 0.0f ? 1.0f : e) * inverse;
}

// The sigmoid on a GPU in float32, by the fast exponential and the fast inverse.
MDOPS_D float sigmoid_gpu(float x) {
  float e, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-1.44269504f * x));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(e + 1.0f));
  return inverse;
}
#endif

template <class T>
MDOPS_HD T tanh_fast(T x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 4) return tanh_gpu(x);
#endif
  const T limit = sizeof(T) == 4 ? T(10) : T(20);  // tanh is 1 to rounding beyond
  T size = x < T(0) ? -x : x;
  size = size > limit ? limit : size;
  const T e = expm1_clamped(T(2) * size), t = quotient(e, e + T(2));
  return x < T(0) ? -t : t;
}

// tanh of x that is not negative: without a sign and a limit, with which GCC would make branches of `silut`.
template <class T>
MDOPS_HD T tanh_upwards(T x) {
#ifdef __CUDA_ARCH__
  return tanh_fast(x);
#else
  const T e = expm1_clamped(T(2) * x);
  return quotient(e, e + T(2));
#endif
}

template <class T>
MDOPS_HD T sigmoid_fast(T x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 4) return sigmoid_gpu(x);
#endif
  return quotient(T(1), expm1_clamped(-x) + T(2));
}

// x where silu is not zero to rounding; without it infinity times zero would be no number.
template <class T>
MDOPS_HD T bounded_below(T x) {
  return x < -ExpConstants<T>::limit ? -ExpConstants<T>::limit : x;
}

// y = f(x) and f'(x). `threshold` is silut's.
template <Activation kind, class T>
MDOPS_HD void activate(T x, T threshold, T* y, T* slope) {
  if constexpr (kind == Activation::tanh) {
    *y = tanh_fast(x);
    *slope = T(1) - *y * *y;
  } else if constexpr (kind == Activation::gelu) {
    const T k = T(0.79788456080286535588), c = T(0.044715);  // sqrt(2/pi)
    const T t = tanh_fast(k * (x + c * x * x * x));
    *y = T(0.5) * x * (T(1) + t);
    *slope = T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * k * (T(1) + T(3) * c * x * x);
  } else if constexpr (kind == Activation::relu) {
    *y = x <= T(0) ? T(0) : x;
    *slope = x > T(0) ? T(1) : *y;
  } else if constexpr (kind == Activation::relu6) {
    const T low = x <= T(0) ? T(0) : x;
    *y = low > T(6) ? T(6) : low;
    *slope = x > T(0) ? (x < T(6) ? T(1) : T(0)) : *y;
  } else if constexpr (kind == Activation::softplus) {
#ifdef __CUDA_ARCH__
    if constexpr (sizeof(T) == 4) return softplus_gpu(x, y, slope);
#endif
    // log(1 + e^x) = max(x, 0) + log(1 + e) with e = e^-|x|, and log(1 + e) = 2 artanh(z) with z <= 1/3.
    const T e = expm1_clamped(x > T(0) ? -x : x) + T(1), z = quotient(e, T(2) + e), z2 = z * z;
    constexpr int terms = sizeof(T) == 4 ? 7 : 15;  // GCC unrolls, and so vectorises, no loop of more than 16
    T sum = 0;
    for (int k = terms; k >= 0; --k) sum = sum * z2 + T(1) / T(2 * k + 1);
    *y = (x > T(0) ? x : T(0)) + T(2) * z * sum;
    *slope = quotient(x > T(0) ? T(1) : e, T(1) + e);
  } else if constexpr (kind == Activation::sigmoid) {
    *y = sigmoid_fast(x);
    *slope = *y * (T(1) - *y);
  } else if constexpr (kind == Activation::silu) {
    const T s = sigmoid_fast(x);
    *y = x * s;
    *slope = s * (T(1) + x * (T(1) - s));
  } else if constexpr (kind == Activation::silut) {
    // silu up to the threshold, and a tanh of what is beyond: both of all numbers, so that loops vectorise.
    const T end = sigmoid_fast(threshold), steep = end * (T(1) + threshold * (T(1) - end));
    const T z = bounded_below(x), low = z < threshold ? z : threshold, s = sigmoid_fast(low);
    const T t = tanh_upwards(steep * (z - low));
    *y = low * s + t;
    *slope = s * (T(1) + low * (T(1) - s)) * (T(1) - t * t);
  } else {
    *y = x;
    *slope = T(1);
  }
}

// The same with f''(x), which is 0 at kinks.
template <Activation kind, class T>
MDOPS_HD void activate_twice(T x, T threshold, T* y, T* slope, T* curve) {
  activate<kind>(x, threshold, y, slope);
  if constexpr (kind == Activation::tanh) {
    *curve = T(-2) * *y * *slope;
  } else if constexpr (kind == Activation::gelu) {
    const T k = T(0.79788456080286535588), c = T(0.044715);
    const T t = tanh_fast(k * (x + c * x * x * x)), bend = T(1) - t * t;
    const T inner = k * (T(1) + T(3) * c * x * x);
    *curve = bend * (inner - x * t * inner * inner + T(3) * k * c * x * x);
  } else if constexpr (kind == Activation::softplus) {
    *curve = *slope * (T(1) - *slope);
  } else if constexpr (kind == Activation::sigmoid) {
    *curve = *slope * (T(1) - T(2) * *y);
  } else if constexpr (kind == Activation::silu) {
    const T s = sigmoid_fast(x), bend = s * (T(1) - s);
    *curve = bend * (T(2) + x * (T(1) - T(2) * s));
  } else if constexpr (kind == Activation::silut) {
    const T z = bounded_below(x), s = sigmoid_fast(z), bend = s * (T(1) - s), end = sigmoid_fast(threshold);
    const T steep = end * (T(1) + threshold * (T(1) - end)), t = tanh_fast(steep * (z - threshold));
    const T below = bend * (T(2) + z * (T(1) - T(2) * s)), above = T(-2) * t * steep * *slope;
    *curve = z < threshold ? below : above;
  } else {
    *curve = x == x ? T(0) : x;
  }
}

// Calls f.template operator()<kind>() for a kind known at run time.
MDOPS_HD void with_activation(Activation kind, const auto& f) {
#ifdef MDOPS_MODEL_ACTIVATION  // the only one of a library that is rebuilt for a model
  static_cast<void>(kind);
  return f.template operator()<static_cast<Activation>(MDOPS_MODEL_ACTIVATION)>();
#else
  switch (kind) {
    case Activation::linear:
      return f.template operator()<Activation::linear>();
    case Activation::tanh:
      return f.template operator()<Activation::tanh>();
    case Activation::gelu:
      return f.template operator()<Activation::gelu>();
    case Activation::relu:
      return f.template operator()<Activation::relu>();
    case Activation::relu6:
      return f.template operator()<Activation::relu6>();
    case Activation::softplus:
      return f.template operator()<Activation::softplus>();
    case Activation::sigmoid:
      return f.template operator()<Activation::sigmoid>();
    case Activation::silu:
      return f.template operator()<Activation::silu>();
    case Activation::silut:
      return f.template operator()<Activation::silut>();
  }
#endif
}

}  // namespace mdops
