// Which kernel takes layers.
#pragma once

#include <type_traits>

#include "so2_layer/gpu_tensor.h"
#include "so2_layer/gpu_wide.h"

namespace mdops {

namespace gpu_so2 {

// Bytes of device memory that a call needs beside its arrays.
template <class T>
int64_t memory_for(const Gpu& gpu, const So2Args<T>& args) {
  if constexpr (std::is_same_v<T, float>)
    if (by_wide_rows(gpu, args)) return WideMemory(gpu, args).bytes;
  return 0;
}

template <class T>
void run(const Gpu& gpu, const So2Args<T>& args, void* memory) {
  if constexpr (std::is_same_v<T, float>) {
    if (by_wide_rows(gpu, args)) return run_wide(gpu, args, static_cast<char*>(memory));
    if (by_tensor_cores(gpu, args)) {
      if (args.grad)
        return args.gate ? run_tensor<true, true>(gpu, args) : run_tensor<true, false>(gpu, args);
      return args.gate ? run_tensor<false, true>(gpu, args) : run_tensor<false, false>(gpu, args);
    }
  }
  run_plain(gpu, args);
}

}  // namespace gpu_so2

}  // namespace mdops
