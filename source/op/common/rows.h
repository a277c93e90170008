// Rows of pairs on a GPU: which row and slot a thread works on, and coalesced stores of three numbers a lane.
#pragma once

#include "common/gpu_warp.h"

namespace mdops {

// A missing value: the kernels' result for a wrong index.
template <class T>
MDOPS_D T not_a_number() {
  return static_cast<T>(__int_as_float(0x7fffffff));
}

// out[3 k + a] = v[a] of lane k, for k < lanes, as consecutive stores; `buffer` holds 3 * kWarp numbers of
// this warp in shared memory. All lanes must call it.
template <class T>
MDOPS_D void store_triples(const T* v, T* buffer, T* out, int lanes) {
  const int lane = lane_index();
  __syncwarp();
  for (int a = 0; a < 3; ++a) buffer[3 * lane + a] = v[a];
  __syncwarp();
  for (int k = lane; k < 3 * lanes; k += kWarp) out[k] = buffer[k];
}

// to[k] = f(from[k]) for k < count, by a warp. A lane loads several numbers at once: the compiler cannot know
// that stores do not alias the next loads.
template <int AtOnce, class T, class F>
MDOPS_D void map_numbers(const T* from, int count, T* to, const F& f) {
  for (int first = lane_index(); first < count; first += AtOnce * kWarp) {
    T x[AtOnce];
#pragma unroll
    for (int k = 0; k < AtOnce; ++k)
      if (first + k * kWarp < count) x[k] = from[first + k * kWarp];
#pragma unroll
    for (int k = 0; k < AtOnce; ++k)
      if (first + k * kWarp < count) to[first + k * kWarp] = f(x[k]);
  }
}

// One row of a pair list with slots ordered by type, as found by a kernel: a real atom, a virtual one, or a
// row that cannot be used, because its type or counts are out of range.
enum class RowKind { real, empty, wrong };

MDOPS_D RowKind row_kind(int32_t type, int ntypes, const int32_t* counts, int64_t width) {
  int64_t sum = 0;
  bool wrong = type < -1 || type >= ntypes;
  for (int t = 0; t < ntypes; ++t) {
    wrong |= counts[t] < 0;
    sum += counts[t];
  }
  if (wrong || sum > width) return RowKind::wrong;
  return type < 0 ? RowKind::empty : RowKind::real;
}

// The type of each slot of a row, queried in increasing order; -1 after the last neighbour.
struct SlotTypes {
  const int32_t* counts;
  int ntypes, type = 0;
  int64_t end;

  __device__ SlotTypes(const int32_t* counts_, int ntypes_)
      : counts(counts_), ntypes(ntypes_), end(ntypes_ > 0 ? counts_[0] : 0) {}

  __device__ int of(int64_t slot) {
    while (type < ntypes && slot >= end) end += ++type < ntypes ? counts[type] : 0;
    return type < ntypes ? type : -1;
  }
};

}  // namespace mdops
