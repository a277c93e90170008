// Inputs of kernels that tell by null what they were not given.
#pragma once

#include "common/tensor.h"

namespace mdops {

// The numbers of an input, not null where it has none.
template <class T>
const T* given(const Tensor& tensor) {
  static const T none{};
  const T* const numbers = tensor.const_data_ptr<T>();
  return numbers ? numbers : &none;
}

}  // namespace mdops
