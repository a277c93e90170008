// The product of a dense layer and its two adjoints, on any device:
//
//   linear         y = x W + b                 (N, I) (I, O) (O,) to (N, O)
//   linear_input   g W^T                       (N, O) (I, O) to (N, I)
//   linear_weight  x^T g, and g's sums 1^T g   (N, I) (N, O) to (I, O) (O,), or (0,) without sums
//
// A device multiplies by its overload of `layer_product`. They are each other's derivatives: of <G, y> by x,
// linear_input(G, W), by W and b, linear_weight(x, G); of the others by the same three (mdops/ops/linear.py).
#pragma once

#include <tuple>

#include "common/bind.h"
#include "common/tensor.h"
#include "linear/forms.h"

namespace mdops {

inline Tensor transposed(const Tensor& matrix) {
  return torch::stable::transpose(matrix, 0, 1);
}

// The sums of all rows, (rows, columns) to (columns,).
inline Tensor column_sums(const Tensor& matrix) {
  const int64_t rows = 0;
  return torch::stable::sum(matrix, torch::headeronly::IntHeaderOnlyArrayRef(&rows, 1));
}

// The product by PyTorch, without a bias, and B's sums.
inline Tensor product_by_pytorch(ProductForm form, const Tensor& a, const Tensor& b, Tensor* sums) {
  const bool of_a = form == ProductForm::a_transposed, of_b = form == ProductForm::b_transposed;
  if (sums) *sums = column_sums(b);
  return torch::stable::matmul(of_a ? transposed(a) : a, of_b ? transposed(b) : b);
}

template <class Device>
struct LinearOps {
  static Tensor linear(const Tensor& x_, const Tensor& weight_, const Tensor& bias_) {
    const auto op = Device::make("linear", "x", x_);
    const Tensor x = float_input(op, "x", x_, {kAny, kAny});
    const Tensor weight = input(op, "weight", weight_, x.scalar_type(), {x.size(1), kAny});
    const int64_t biases = bias_.numel() ? weight.size(1) : 0;
    const Tensor bias = input(op, "bias", bias_, x.scalar_type(), {biases});
    return layer_product(op, ProductForm::plain, x, weight, &bias, nullptr);
  }

  static Tensor linear_input(const Tensor& grad_, const Tensor& weight_) {
    const auto op = Device::make("linear_input", "grad", grad_);
    const Tensor grad = float_input(op, "grad", grad_, {kAny, kAny});
    const Tensor weight = input(op, "weight", weight_, grad.scalar_type(), {kAny, grad.size(1)});
    return layer_product(op, ProductForm::b_transposed, grad, weight, nullptr, nullptr);
  }

  static std::tuple<Tensor, Tensor> linear_weight(const Tensor& x_, const Tensor& grad_, bool with_sums) {
    const auto op = Device::make("linear_weight", "x", x_);
    const Tensor x = float_input(op, "x", x_, {kAny, kAny});
    const Tensor grad = input(op, "grad", grad_, x.scalar_type(), {x.size(0), kAny});
    Tensor sums = empty(op, {with_sums ? grad.size(1) : 0}, x.scalar_type());
    const Tensor weight =
        layer_product(op, ProductForm::a_transposed, x, grad, nullptr, with_sums ? &sums : nullptr);
    return {weight, sums};
  }

  MDOPS_IMPLEMENT(LinearOps, linear, linear_input, linear_weight)
};

}  // namespace mdops
