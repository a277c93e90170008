// Vectors of which an array has only the first numbers: for one instruction set.
#pragma once

#include <cstdint>
#include <cstring>

#include "common/vectors.h"

namespace mdops::MDOPS_ISA {

// The first numbers of a vector, or all of them; zeros in the others.
template <class T, bool Whole>
struct SomeLanes {
  int64_t count;

  inline __attribute__((always_inline)) Vector<T> load(const T* p) const {
    if constexpr (Whole) return vector_at(p);
    Vector<T> v{};
    std::memcpy(&v, p, count * sizeof(T));
    return v;
  }
  inline __attribute__((always_inline)) void store(T* p, const Vector<T>& v) const {
    if constexpr (Whole)
      MDOPS_ISA::store(p, v);
    else
      std::memcpy(p, &v, count * sizeof(T));
  }
};

// Calls work(lanes) with what loads and stores so many.
template <class T, class Work>
inline void with_lanes(int64_t count, const Work& work) {
  if (count == kLanes<T>)
    work(SomeLanes<T, true>{count});
  else
    work(SomeLanes<T, false>{count});
}

}  // namespace mdops::MDOPS_ISA
