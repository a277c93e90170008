// The accuracy of products, by name.
#pragma once

#include "common/tensor.h"
#include "gemm/bf16.h"

namespace mdops {

// The least accuracy of a net's products: a device without such units uses the next better way.
enum class Matmul { float32, tf32, bf16x6, bf16x3, bf16 };

inline Matmul matmul_of(const Op& op, const std::string& name) {
  if (name == "float32") return Matmul::float32;
  if (name == "tf32") return Matmul::tf32;
  if (name == "bf16x6") return Matmul::bf16x6;
  if (name == "bf16x3") return Matmul::bf16x3;
  if (name == "bf16") return Matmul::bf16;
  fail(op, "argument `matmul` is \"", name,
       "\", expected \"float32\", \"tf32\", \"bf16x6\", \"bf16x3\" or \"bf16\"");
}

// The number of bfloat16 parts of a float32 number in products on the CPU; 0: float32 products.
inline int bf16_parts(Matmul matmul, ScalarType dtype) {
  if (dtype != ScalarType::Float || !bf16_units()) return 0;
  return matmul == Matmul::bf16x6 ? 3 : matmul == Matmul::bf16x3 ? 2 : matmul == Matmul::bf16 ? 1 : 0;
}

// Refuses TF32 products on the CPU, which has none.
inline void refuse_tf32(const Op& op, Matmul matmul) {
  if (matmul == Matmul::tf32)
    fail(op, "argument `matmul` is \"tf32\", and the CPU has no products of that accuracy: only GPUs do");
}

}  // namespace mdops
