// Vectors of which an array has only the first numbers; for one instruction set.
#pragma once

#include <cstring>

#include "common/vectors.h"

namespace mdops::MDOPS_ISA {

// The first numbers of a vector, or all of them; zeros in the others.
template <class T, bool Whole>
struct SomeLanes {
  int64_t count;

  MDOPS_INLINE Vector<T> load(const T* p) const {
    if constexpr (Whole) return vector_at(p);
#if defined(MDOPS_ISA_LEVEL_v4)
    if constexpr (sizeof(T) == 4)
      return (Vector<T>)_mm512_maskz_loadu_ps(mask(), p);
    else
      return (Vector<T>)_mm512_maskz_loadu_pd(mask(), p);
#else
    Vector<T> v{};
    std::memcpy(&v, p, count * sizeof(T));
    return v;
#endif
  }
  MDOPS_INLINE void store(T* p, const Vector<T>& v) const {
    if constexpr (Whole) return MDOPS_ISA::store(p, v);
#if defined(MDOPS_ISA_LEVEL_v4)
    if constexpr (sizeof(T) == 4)
      _mm512_mask_storeu_ps(p, mask(), (__m512)v);
    else
      _mm512_mask_storeu_pd(p, mask(), (__m512d)v);
#else
    std::memcpy(p, &v, count * sizeof(T));
#endif
  }

 private:
#if defined(MDOPS_ISA_LEVEL_v4)
  __mmask16 mask() const { return static_cast<__mmask16>((1 << count) - 1); }
#endif
};

// Calls work(lanes) with a loader and storer of that many lanes.
template <class T, class Work>
inline void with_lanes(int64_t count, const Work& work) {
  if (count == kLanes<T>)
    work(SomeLanes<T, true>{count});
  else
    work(SomeLanes<T, false>{count});
}

// Calls work(first, V{}) for pieces of one V each: whole vectors, then fours, then single numbers.
template <class T, class Work>
MDOPS_INLINE void each_piece(int64_t count, const Work& work) {
  int64_t k = 0;
  for (; k + kLanes<T> <= count; k += kLanes<T>) work(k, Vector<T>{});
  for (; k + 4 <= count; k += 4) work(k, Vector4<T>{});
  for (; k < count; ++k) work(k, T{});
}

}  // namespace mdops::MDOPS_ISA
