// Vectors of one instruction set in GCC and Clang, and where these differ.
#pragma once

#include <cstdint>

#include "common/math.h"

#if defined(MDOPS_ISA_LEVEL_v4)
#include <immintrin.h>
#endif

#if defined(__clang__)
// The next loop has independent iterations.
#define MDOPS_INDEPENDENT _Pragma("clang loop vectorize(assume_safety) unroll(disable)")
#define MDOPS_UNROLL _Pragma("unroll")
#else
#define MDOPS_INDEPENDENT _Pragma("GCC ivdep")
#define MDOPS_UNROLL _Pragma("GCC unroll 16")
#endif

// The lanes of two vectors with these numbers, those of the second numbered after those of the first; `Index`
// is the integer vector of that size.
#if defined(__clang__) || __GNUC__ >= 12
#define MDOPS_SHUFFLE(Index, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MDOPS_SHUFFLE(Index, a, b, ...) __builtin_shuffle(a, b, Index{__VA_ARGS__})
#endif

namespace mdops::MDOPS_ISA {

#if defined(MDOPS_ISA_LEVEL_v4)
constexpr int kVectorBytes = 64;
#elif defined(MDOPS_ISA_LEVEL_v3)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// A vector's type has only its size. If it also had the alignment of its elements, Clang would forget that
// when a function template returns a reference: `load` and `store` specify it.
template <class T>
struct VectorTypes;
template <>
struct VectorTypes<float> {
  typedef float whole __attribute__((vector_size(kVectorBytes)));
  typedef float four __attribute__((vector_size(4 * sizeof(float))));
  typedef int32_t whole_index __attribute__((vector_size(kVectorBytes)));
  typedef int32_t four_index __attribute__((vector_size(4 * sizeof(float))));
};
template <>
struct VectorTypes<double> {
  typedef double whole __attribute__((vector_size(kVectorBytes)));
  typedef double four __attribute__((vector_size(4 * sizeof(double))));
  typedef int64_t whole_index __attribute__((vector_size(kVectorBytes)));
  typedef int64_t four_index __attribute__((vector_size(4 * sizeof(double))));
};

template <class T>
using Vector = typename VectorTypes<T>::whole;
template <class T>
using Vector4 = typename VectorTypes<T>::four;
template <class T>
using VectorIndex = typename VectorTypes<T>::whole_index;
template <class T>
using Vector4Index = typename VectorTypes<T>::four_index;

template <class T>
constexpr int kLanes = kVectorBytes / sizeof(T);

// A vector of type V at p, which need only have its elements' alignment.
template <class V, class T>
MDOPS_INLINE V load(const T* p) {
  typedef V InMemory __attribute__((aligned(sizeof(T)), may_alias));
  return *reinterpret_cast<const InMemory*>(p);
}
template <class V, class T>
MDOPS_INLINE void store(T* p, const V& v) {
  typedef V InMemory __attribute__((aligned(sizeof(T)), may_alias));
  *reinterpret_cast<InMemory*>(p) = v;
}

template <class T>
MDOPS_INLINE Vector<T> vector_at(const T* p) {
  return load<Vector<T>>(p);
}

template <class T>
MDOPS_INLINE void add_to(T* p, const Vector<T>& v) {
  store(p, vector_at(p) + v);
}

// Whether `stream` can write rows of `bytes` from `p` on: if a vector is a cache line, and the rows are whole
// ones.
inline bool streams_to([[maybe_unused]] const void* p, [[maybe_unused]] int64_t bytes) {
#if defined(MDOPS_ISA_LEVEL_v4)
  return (reinterpret_cast<uintptr_t>(p) | static_cast<uintptr_t>(bytes)) % kVectorBytes == 0;
#else
  return false;
#endif
}

// Writes a line past the caches: it is not read first, and evicts nothing. Other threads may read it once
// this one has called `finish_streams`.
template <class T>
MDOPS_INLINE void stream([[maybe_unused]] T* p, [[maybe_unused]] const Vector<T>& v) {
#if defined(MDOPS_ISA_LEVEL_v4)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), (__m512i)v);
#endif
}
inline void finish_streams() {
#if defined(MDOPS_ISA_LEVEL_v4)
  _mm_sfence();
#endif
}

// By halves: adding one number at a time would wait for each sum.
template <class T, int Lanes>
struct LaneSum {
  typedef T Whole __attribute__((vector_size(Lanes * sizeof(T))));
  typedef T Half __attribute__((vector_size(Lanes / 2 * sizeof(T))));
  struct Halves {
    Half low, high;
  };

  static MDOPS_INLINE T of(const Whole& v) {
    const Halves halves = __builtin_bit_cast(Halves, v);
    return LaneSum<T, Lanes / 2>::of(halves.low + halves.high);
  }
};
template <class T>
struct LaneSum<T, 2> {
  typedef T Whole __attribute__((vector_size(2 * sizeof(T))));
  static MDOPS_INLINE T of(const Whole& v) { return v[0] + v[1]; }
};

template <class T>
MDOPS_INLINE T sum_lanes(const Vector<T>& v) {
  return LaneSum<T, kLanes<T>>::of(v);
}

// Sums of `width` numbers, and of products of two.
template <class T>
inline T sum_of(const T* a, int64_t width) {
  Vector<T> whole = Vector<T>{};
  int64_t k = 0;
  for (; k + kLanes<T> <= width; k += kLanes<T>) whole += vector_at(a + k);
  T sum = sum_lanes<T>(whole);
  for (; k < width; ++k) sum += a[k];
  return sum;
}
template <class T>
inline T dot(const T* a, const T* b, int64_t width) {
  Vector<T> whole = Vector<T>{};
  int64_t k = 0;
  for (; k + kLanes<T> <= width; k += kLanes<T>) whole += vector_at(a + k) * vector_at(b + k);
  T sum = sum_lanes<T>(whole);
  for (; k < width; ++k) sum += a[k] * b[k];
  return sum;
}

}  // namespace mdops::MDOPS_ISA
