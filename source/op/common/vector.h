// Numbers side by side that a thread of a GPU reads and writes at once.
#pragma once

#include <cstdint>

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

// f.operator()<size>() with the numbers that rows so wide, the first on 16 bytes, may be read by at once.
template <class T, class F>
void with_vector(int64_t width, const F& f) {
  if (width % kVectorSize<T> == 0)
    f.template operator()<kVectorSize<T>>();
  else
    f.template operator()<1>();
}

}  // namespace mdops
