// The choice of a kernel for layers.
#pragma once

#include <type_traits>

#include "so2_layer/gpu_products.h"
#include "so2_layer/gpu_tensor.h"
#include "so2_layer/gpu_wide.h"

namespace mdops::gpu_so2 {

// Whether one kernel supports the whole layer.
template <class T>
bool has_kernel(const Gpu& gpu, const So2Args<T>& args) {
  if constexpr (std::is_same_v<T, float>)
    return by_wide_rows(gpu, args) || by_tensor_cores(gpu, args);
  else
    return false;
}

// Bytes of device memory that a call needs beside its arrays.
template <class T>
int64_t memory_for(const Gpu& gpu, const So2Args<T>& args) {
  if (!has_kernel(gpu, args)) return ProductMemory<T>(args).numbers * static_cast<int64_t>(sizeof(T));
  if constexpr (std::is_same_v<T, float>)
    if (by_wide_rows(gpu, args)) return WideMemory(gpu, args).bytes;
  return 0;
}

// multiply(A, B, C, added): as in run_products.
template <class T, class Multiply>
void run(const Gpu& gpu, const So2Args<T>& args, void* memory, const Multiply& multiply) {
  if (!has_kernel(gpu, args)) return run_products(gpu, args, static_cast<T*>(memory), multiply);
  if constexpr (std::is_same_v<T, float>) {
    if (by_wide_rows(gpu, args)) return run_wide(gpu, args, static_cast<char*>(memory));
    if (args.grad) return args.gate ? run_tensor<true, true>(gpu, args) : run_tensor<true, false>(gpu, args);
    args.gate ? run_tensor<false, true>(gpu, args) : run_tensor<false, false>(gpu, args);
  }
}

}  // namespace mdops::gpu_so2
