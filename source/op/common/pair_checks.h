// Checks of a pair list's values, once at an op's entry: a wrong index must be an error, not a crash.
#pragma once

#include "common/tensor.h"

namespace mdops {

// Every entry of `neighbors` is -1 or an atom.
void check_neighbors(const char* op, const Tensor& neighbors, int64_t atoms);
// Every entry of the int32 tensor is in [low, high).
void check_range(const char* op, const char* name, const Tensor& values, int64_t low, int64_t high);
// No row of `counts` (N, ntypes) is negative or sums to more than `capacity`.
void check_counts(const char* op, const Tensor& counts, int64_t capacity);

}  // namespace mdops
