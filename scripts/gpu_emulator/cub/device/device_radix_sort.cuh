// Replaces CUB on the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace cub {

struct DeviceRadixSort {
  template <class K, class V, class Stream>
  static cudaError_t SortPairs(void* memory, size_t& bytes, const K* keys, K* sorted, const V* values,
                               V* sorted_values, int n, int first_bit, int last_bit, Stream) {
    bytes = 1;
    if (!memory) return cudaSuccess;
    const auto key = [&](int k) {
      return keys[k] >> first_bit & ((uint64_t{1} << (last_bit - first_bit)) - 1);
    };
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return key(a) < key(b); });
    for (int k = 0; k < n; ++k) sorted[k] = keys[order[k]], sorted_values[k] = values[order[k]];
    return cudaSuccess;
  }
};

}  // namespace cub
