// Adjacent numbers that a thread of a GPU reads and writes at once.
#pragma once

#include <numeric>

#include "common/gpu_unroll.h"
#include "common/gpu_warp.h"

namespace mdops {

// As many as fit into 16 bytes.
template <class T>
constexpr int kVectorSize = 16 / sizeof(T);

template <class T, int size>
struct alignas(sizeof(T) * size) Vector {
  T numbers[size] = {};

  Vector() = default;
  MDOPS_D explicit Vector(const T* from) { *this = *reinterpret_cast<const Vector*>(from); }
  static MDOPS_D Vector all(T value) {
    Vector found;
    unrolled<size>([&](int k) { found[k] = value; });
    return found;
  }
  MDOPS_D void store(T* to) const { *reinterpret_cast<Vector*>(to) = *this; }
  MDOPS_D T& operator[](int k) { return numbers[k]; }
  MDOPS_D const T& operator[](int k) const { return numbers[k]; }

  friend MDOPS_D Vector operator+(Vector a, const Vector& b) {
    unrolled<size>([&](int k) { a[k] += b[k]; });
    return a;
  }
  friend MDOPS_D Vector operator*(Vector a, const Vector& b) {
    unrolled<size>([&](int k) { a[k] *= b[k]; });
    return a;
  }
  friend MDOPS_D Vector operator*(T factor, Vector a) {
    unrolled<size>([&](int k) { a[k] = factor * a[k]; });
    return a;
  }
  MDOPS_D Vector& operator+=(const Vector& other) {
    unrolled<size>([&](int k) { numbers[k] += other[k]; });
    return *this;
  }
};

// Calls f.operator()<size>() with the vector size for rows of this width, the first aligned to 16 bytes.
template <class T, class F>
void with_vector(int64_t width, const F& f) {
  if (width % kVectorSize<T> == 0)
    f.template operator()<kVectorSize<T>>();
  else
    f.template operator()<1>();
}

// Calls f.operator()<n>() for the n of `Numbers` that `number` is; false if it is none of them.
template <int... Numbers>
bool with_one_of(int64_t number, const auto& f) {
  return ((number == Numbers && (f.template operator()<Numbers>(), true)) || ...);
}

// A row of 1 << lanes threads in blocks of kRowThreads, which take its vectors in turn: the row of a thread,
// and its first vector.
constexpr int kRowThreads = 256;
struct RowOfLanes {
  int64_t row;
  int first, step;

  __device__ explicit RowOfLanes(int lanes)
      : row((static_cast<int64_t>(blockIdx.x) * kRowThreads + threadIdx.x) >> lanes),
        first(threadIdx.x & ((1 << lanes) - 1)),
        step(1 << lanes) {}
};

// Calls f.operator()<vector size>(lanes) for rows of `width` numbers, `stride` apart or, if 0, each for
// itself. They have as many lanes as vectors, up to a warp.
template <class T, class F>
void with_row_lanes(int64_t width, int64_t stride, const F& f) {
  with_vector<T>(std::gcd(width, stride), [&]<int size>() {
    int lanes = 0;
    while ((1 << lanes) < kWarp && (size << lanes) < width) ++lanes;
    f.template operator()<size>(lanes);
  });
}

}  // namespace mdops
