#include "common/gpu_sort.h"

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

namespace mdops {

// CUB returns the thread's last error, which another library may have left: this clears it.

cudaError_t sort_pairs(void* memory, size_t& bytes, const uint32_t* keys, uint32_t* sorted,
                       const int32_t* values, int32_t* ordered, int64_t count, int bits,
                       cudaStream_t stream) {
  cudaGetLastError();
  return cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted, values, ordered,
                                         static_cast<int>(count), 0, bits, stream);
}

cudaError_t sum_up(void* memory, size_t& bytes, const int64_t* numbers, int64_t* sums, int64_t count,
                   cudaStream_t stream) {
  cudaGetLastError();
  return cub::DeviceScan::InclusiveSum(memory, bytes, numbers, sums, count, stream);
}

}  // namespace mdops
