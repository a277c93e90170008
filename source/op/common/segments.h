// Rows of segments: segment i has rows offsets[i] .. offsets[i + 1] - 1; rows after the last belong to none.
#pragma once

#include <algorithm>

#include "common/flush_tiny.h"
#include "common/parallel.h"
#include "common/scratch.h"

namespace mdops {

inline int64_t longest_segment(const int32_t* offsets, int64_t segments) {
  int64_t longest = 0;
  for (int64_t i = 0; i < segments; ++i) longest = std::max<int64_t>(longest, offsets[i + 1] - offsets[i]);
  return longest;
}

// Sets rows [first, end) of an array to zero, if there is one.
template <class T>
void clear_rows(T* rows, int64_t first, int64_t end, int64_t width) {
  if (rows) std::fill(rows + first * width, rows + end * width, T(0));
}

// Calls f(begin, end, memory) for some of the atoms, whose edges are segments, in each thread. Denormal
// numbers are zero then: weights of far edges are squares of squares of small switches.
void each_atoms_edges(const Op& op, int64_t atoms, int64_t bytes, const auto& f) {
  struct Use;
  constexpr int64_t kAtoms = 4;
  parallel(atoms, kAtoms, [&](int64_t begin, int64_t end) {
    const FlushTiny flush;
    const ScratchMemory<Use> memory(op, bytes);
    f(begin, end, memory.data());
  });
}

}  // namespace mdops
