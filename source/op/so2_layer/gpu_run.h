// Which kernel takes layers.
#pragma once

#include <type_traits>

#include "so2_layer/gpu_tensor.h"

namespace mdops {

namespace gpu_so2 {

template <class T>
void run(const Gpu& gpu, const So2Args<T>& args) {
  if constexpr (std::is_same_v<T, float>) {
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
