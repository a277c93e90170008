// A dense layer's product on a GPU, for every op that multiplies layers; linear/cuda.cu compiles its kernels.
#pragma once

#include "common/cuda.h"
#include "common/matrix_view.h"
#include "linear/forms.h"

namespace mdops {

// C from the form's A and B (contiguous, of one dtype), with `bias` (columns,) added to its rows, and the
// sums of B's columns in `sums` (columns,); either may be null. Float32 uses the tensor cores, to its own
// accuracy, where they are faster (linear.md, "Products of layers"); all else is PyTorch's.
Tensor layer_product(const CudaOp& op, ProductForm form, Input a, Input b, const Tensor* bias = nullptr,
                     Tensor* sums = nullptr);

// The same for float32 or float64 without these, for matrices anywhere in device memory: c = a b + `added`,
// which has the layout of c. c is not transposed.
template <class T>
void multiply_into(const CudaOp& op, const MatrixView<const T>& a, const MatrixView<const T>& b,
                   const MatrixView<T>& c, const T* added);

}  // namespace mdops
