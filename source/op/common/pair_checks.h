// Checks of a pair list's values, once at an op's entry: a wrong index must be an error, not a crash.
// Values on a GPU are not looked at here, because that would wait for them: the kernels check them where they
// use them, and answer a wrong one with NaN (ops.md).
#pragma once

#include "common/tensor.h"

namespace mdops {

// Every entry of `neighbors` is -1 or an atom.
void check_neighbors(const Op& op, const Tensor& neighbors, int64_t atoms);
// Every entry of the int32 tensor is in [low, high).
void check_range(const Op& op, const char* name, const Tensor& values, int64_t low, int64_t high);
// No row of `counts` (N, ntypes) is negative or sums to more than `capacity`.
void check_counts(const Op& op, const Tensor& counts, int64_t capacity);

// Offsets (atoms + 1,) do not fall, and go from 0 to the number of rows, those of the argument `of`, or where
// rows may be left to fewer.
void check_offsets(const Op& op, const Tensor& offsets, int64_t rows, const char* of, bool leaves = false);

// A pair list at an op's entry: `neighbors` (N, K), and `batch` (N,) with the system of each atom.
struct PairList {
  Tensor batch, neighbors;
  int64_t atoms, width;

  PairList(const Op& op, const Tensor& batch, const Tensor& neighbors, int64_t systems);
};

}  // namespace mdops
