// Adjacent numbers that a thread of a GPU reads and writes at once.
#pragma once

#include <cstdint>

namespace mdops {

// As many as fit into 16 bytes.
template <class T>
constexpr int kVectorSize = 16 / sizeof(T);

template <class T, int size>
struct alignas(sizeof(T) * size) Vector {
  T numbers[size] = {};

  Vector() = default;
  MDOPS_D explicit Vector(const T* from) { *this = *reinterpret_cast<const Vector*>(from); }
  MDOPS_D void store(T* to) const { *reinterpret_cast<Vector*>(to) = *this; }
  MDOPS_D T& operator[](int k) { return numbers[k]; }
  MDOPS_D const T& operator[](int k) const { return numbers[k]; }
};

// Calls f.operator()<size>() with the vector size for rows of this width, the first aligned to 16 bytes.
template <class T, class F>
void with_vector(int64_t width, const F& f) {
  if (width % kVectorSize<T> == 0)
    f.template operator()<kVectorSize<T>>();
  else
    f.template operator()<1>();
}

}  // namespace mdops
