// Numbers side by side that a thread of a GPU reads and writes at once.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace mdops {

// As many as 16 bytes hold.
template <class T>
constexpr int kVectorSize = 16 / sizeof(T);

template <class T, int size>
struct alignas(sizeof(T) * size) Vector {
  T numbers[size] = {};

  Vector() = default;
  __device__ __forceinline__ explicit Vector(const T* from) {
    *this = *reinterpret_cast<const Vector*>(from);
  }
  __device__ __forceinline__ void store(T* to) const { *reinterpret_cast<Vector*>(to) = *this; }
  __device__ __forceinline__ T& operator[](int k) { return numbers[k]; }
  __device__ __forceinline__ const T& operator[](int k) const { return numbers[k]; }
};

// f.operator()<size>() with the numbers that rows of these widths, from these places on, may be read by at
// once. A place may be null.
template <class T, class F>
void with_vector(std::initializer_list<int64_t> widths, std::initializer_list<const T*> places, const F& f) {
  bool fits = true;
  for (const int64_t width : widths) fits &= width % kVectorSize<T> == 0;
  for (const T* place : places) fits &= reinterpret_cast<uintptr_t>(place) % 16 == 0;
  if (fits)
    f.template operator()<kVectorSize<T>>();
  else
    f.template operator()<1>();
}

// a / b, in 32 bits if it may be, which a GPU does much sooner. Neither is negative.
__host__ __device__ __forceinline__ int64_t quotient(int64_t a, int b) {
  const uint64_t whole = static_cast<uint64_t>(a);
  return whole >> 32 ? a / b : static_cast<uint32_t>(whole) / static_cast<uint32_t>(b);
}

}  // namespace mdops
