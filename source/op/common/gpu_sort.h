// Sorts and sums of many numbers on a GPU, by CUB. It is compiled for them once: its headers take long.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace mdops {

// Without memory these say how many bytes of it they need.
//
// Pairs in the order of their keys, of which the lowest `bits` count; those of the same key stay in theirs.
cudaError_t sort_pairs(void* memory, size_t& bytes, const uint32_t* keys, uint32_t* sorted,
                       const int32_t* values, int32_t* ordered, int64_t count, int bits, cudaStream_t stream);
// sums[k] = numbers[0] + ... + numbers[k].
cudaError_t sum_up(void* memory, size_t& bytes, const int64_t* numbers, int64_t* sums, int64_t count,
                   cudaStream_t stream);

}  // namespace mdops
