// Replaces CUB on the host.
#pragma once

#include <cstddef>

namespace cub {

struct DeviceScan {
  template <class T, class N, class Stream>
  static cudaError_t InclusiveSum(void* memory, size_t& bytes, const T* in, T* out, N n, Stream) {
    bytes = 1;
    T sum = 0;
    for (N k = 0; memory && k < n; ++k) out[k] = sum += in[k];
    return cudaSuccess;
  }
};

}  // namespace cub
