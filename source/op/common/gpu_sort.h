// Sorts and sums of many numbers on a GPU, by CUB. Only this compiles CUB: its headers take long.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace mdops {

// Without memory these say how many bytes of it they need.
//
// Sorts pairs by their keys' lowest `bits`; stable.
cudaError_t sort_pairs(void* memory, size_t& bytes, const uint32_t* keys, uint32_t* sorted,
                       const int32_t* values, int32_t* ordered, int64_t count, int bits, cudaStream_t stream);
// sums[k] = numbers[0] + ... + numbers[k].
cudaError_t sum_up(void* memory, size_t& bytes, const int64_t* numbers, int64_t* sums, int64_t count,
                   cudaStream_t stream);

}  // namespace mdops
