// Results too large for any cache, in memory that is kept from one to the next.
//
// The system zeroes new memory a page at a time as it is written: 79 MB, the gradient of 12,288 rows of a net
// of water, take a fifth of the time of the whole call. The C library gives so large an array back to the
// system when it is freed, so each result is new memory again.
#pragma once

#include "common/tensor.h"

namespace mdops {

// Bytes of an array that no cache keeps until somebody reads it.
constexpr int64_t kLargeArray = int64_t{32} << 20;

// A new tensor on the CPU, of numbers of 64, 32 or 16 bits. If it is large it takes the memory of an earlier
// one that is no more, where there is such; and its own is kept when it goes, 1 GiB of all together, for the
// system to take back when it is short of memory (MADV_FREE). Where the system has no such promise, nothing
// is kept.
Tensor empty_result(const Op& op, const std::vector<int64_t>& shape, ScalarType dtype);

}  // namespace mdops
