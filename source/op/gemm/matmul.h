// The accuracy of products, by name.
#pragma once

#include <string>

#include "common/tensor.h"

namespace mdops {

// How accurate the products of a net are.
enum class Matmul { float32, tf32 };

inline Matmul matmul_of(const Op& op, const std::string& name) {
  if (name == "float32") return Matmul::float32;
  if (name == "tf32") return Matmul::tf32;
  fail(op, "argument `matmul` is \"" + name + "\", expected \"float32\" or \"tf32\"");
}

// Refuses other products than float32's on the CPU, which has none.
inline void refuse_tf32(const Op& op, Matmul matmul) {
  if (matmul != Matmul::float32)
    fail(op, "argument `matmul` is \"tf32\", and the CPU has no products of that accuracy: only GPUs do");
}

}  // namespace mdops
