// Results too large for any cache, in memory that is kept for reuse.
//
// The system zeroes new memory a page at a time as it is written: 79 MB, the gradient of 12,288 rows of a net
// of water, take a fifth of the time of the whole call. The C library returns so large an array to the system
// when it is freed, so each result is new memory again.
#pragma once

#include "common/tensor.h"

namespace mdops {

// Bytes of an array that no cache keeps until it is read.
constexpr int64_t kLargeArray = int64_t{32} << 20;

// A new tensor on the CPU, of numbers of 64, 32 or 16 bits. A large one reuses the memory of an earlier
// deleted one, if there is any; its own is kept when it is deleted, 1 GiB in total, and the system may
// reclaim it when memory is short (MADV_FREE). On systems without that, nothing is kept.
Tensor empty_result(const Op& op, const std::vector<int64_t>& shape, ScalarType dtype);

}  // namespace mdops
