// The product of a dense layer and its two adjoints, on any device:
//
//   linear         y = x W + b                 (N, I) (I, O) (O,) to (N, O)
//   linear_input   g W^T                       (N, O) (I, O) to (N, I)
//   linear_weight  x^T g, and g's sums 1^T g   (N, I) (N, O) to (I, O) (O,), or (0,) without sums
//   degree_linear  y_lm = x_lm W_l, or W_l^T   (N, (L + 1)^2, I) (L + 1, I, O) to (N, (L + 1)^2, O)
//
// A device implements overloads of `layer_product` and `degree_product`. The first three are each other's
// derivatives: <G, y> has the gradients linear_input(G, W) by x and linear_weight(x, G) by W and b; those of
// the others are among the same three (mdops/ops/linear.py).
#pragma once

#include <array>

#include "common/bind.h"
#include "common/tensor.h"
#include "linear/forms.h"

namespace mdops {

inline Tensor transposed(Input matrix) {
  return torch::stable::transpose(matrix, 0, 1);
}

// The sums of all rows, (rows, columns) to (columns,).
inline Tensor column_sums(Input matrix) {
  const int64_t rows = 0;
  return torch::stable::sum(matrix, torch::headeronly::IntHeaderOnlyArrayRef(&rows, 1));
}

// The tensor, or a copy if it is not aligned to a cache line: MKL chooses its algorithm by the alignment.
inline Tensor on_a_line(Input tensor) {
  return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 64 ? torch::stable::clone(tensor) : tensor;
}

// PyTorch's product, without a bias, and B's sums.
inline Tensor product_by_pytorch(ProductForm form, Input a, Input b, Tensor* sums) {
  const bool of_a = form == ProductForm::a_transposed, of_b = form == ProductForm::b_transposed;
  if (sums) *sums = column_sums(b);
  return torch::stable::matmul(of_a ? transposed(a) : a, of_b ? transposed(b) : b);
}

// The product by PyTorch, degree by degree.
inline Tensor degrees_by_pytorch(const Op& op, Input x, Input weight, bool transposes) {
  const int64_t rows = x.size(0), depth = x.size(2), columns = weight.size(transposes ? 1 : 2);
  Tensor y = empty(op, {rows, x.size(1), columns}, x.scalar_type());
  for (int64_t l = 0; l < weight.size(0); ++l) {
    const int64_t count = 2 * l + 1;
    const std::array<int64_t, 2> flat{rows * count, depth};
    const std::array<int64_t, 3> whole{rows, count, columns};
    Tensor all = x;
    const Tensor own = torch::stable::contiguous(torch::stable::narrow(all, 1, l * l, count));
    const Tensor matrix = torch::stable::select(weight, 0, l);
    const Tensor product =
        torch::stable::matmul(torch::stable::view(own, flat), transposes ? transposed(matrix) : matrix);
    Tensor to = torch::stable::narrow(y, 1, l * l, count);
    torch::stable::copy_(to, torch::stable::view(product, whole));
  }
  return y;
}

template <class Device>
struct LinearOps {
  static Tensor linear(Checked<Device>& in, Input x_, Input weight_, Input bias_) {
    const Tensor x = float_input(in.op, "x", x_, {kAny, kAny});
    const Tensor weight = input(in.op, "weight", weight_, x.scalar_type(), {x.size(1), kAny});
    const int64_t biases = bias_.numel() ? weight.size(1) : 0;
    const Tensor bias = input(in.op, "bias", bias_, x.scalar_type(), {biases});
    return layer_product(in.op, ProductForm::plain, x, weight, &bias, nullptr);
  }

  static Tensor linear_input(Checked<Device>& in, Input grad_, Input weight_) {
    const Tensor grad = float_input(in.op, "grad", grad_, {kAny, kAny});
    const Tensor weight = input(in.op, "weight", weight_, grad.scalar_type(), {kAny, grad.size(1)});
    return layer_product(in.op, ProductForm::b_transposed, grad, weight, nullptr, nullptr);
  }

  static Outputs<2> linear_weight(Checked<Device>& in, Input x_, Input grad_, bool with_sums) {
    const Tensor x = float_input(in.op, "x", x_, {kAny, kAny});
    const Tensor grad = input(in.op, "grad", grad_, x.scalar_type(), {x.size(0), kAny});
    Tensor sums = empty(in.op, {with_sums ? grad.size(1) : 0}, x.scalar_type());
    const Tensor weight =
        layer_product(in.op, ProductForm::a_transposed, x, grad, nullptr, with_sums ? &sums : nullptr);
    return {weight, sums};
  }

  static Tensor degree_linear(Checked<Device>& in, Input x_, Input weight_, bool transposed) {
    const Tensor x = float_input(in.op, "x", x_, {kAny, kAny, kAny});
    const std::array<int64_t, 2> sizes{transposed ? kAny : x.size(2), transposed ? x.size(2) : kAny};
    const Tensor weight = input(in.op, "weight", weight_, x.scalar_type(), {kAny, sizes[0], sizes[1]});
    if (x.size(1) != weight.size(0) * weight.size(0))
      fail(in.op, "argument `x` has ", x.size(1), " coefficients, expected those of the ", weight.size(0),
           " degrees of `weight`, as many as their square");
    return degree_product(in.op, x, weight, transposed);
  }

  MDOPS_IMPLEMENT(LinearOps, linear, linear_input, linear_weight, degree_linear)
};

}  // namespace mdops
