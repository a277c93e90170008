// Checks of a pair list's values, once at an op's entry: a wrong index must be an error, not a crash. Values
// on a GPU are not checked here, because that would wait for them: the kernels check them in use, and return
// NaN for a wrong one (ops.md).
#pragma once

#include "common/tensor.h"

namespace mdops {

// Each of `count` values is in [low, high).
void check_range(const Op& op, const char* name, const int32_t* values, int64_t count, int64_t low,
                 int64_t high);
inline void check_range(const Op& op, const char* name, Input values, int64_t low, int64_t high) {
  check_range(op, name, data_of(values), values.numel(), low, high);
}
// No row of `counts` (N, ntypes) is negative or sums to more than `capacity`.
void check_counts(const Op& op, const int32_t* counts, int64_t atoms, int64_t ntypes, int64_t capacity);

// Offsets (atoms + 1,) do not decrease, and go from 0 to the number of rows of the argument `of`, or to fewer
// if rows may remain.
void check_offsets(const Op& op, const int32_t* offsets, int64_t atoms, int64_t rows, const char* of,
                   bool leaves = false);

}  // namespace mdops
