#include "axis_product/inputs.h"

namespace mdops {

namespace {

constexpr int64_t kAtoms = 16;  // that a thread takes at once

Tensor axis_product(const Tensor& t, int64_t axis, const std::optional<Tensor>& behind) {
  const Op op("axis_product");
  const AxisInputs in(op, t, axis, behind);
  Tensor out = empty(op, {in.atoms, in.row_size()}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    const AxisArgs<decltype(zero)> p = in.args<decltype(zero)>(out, false);
    parallel(in.atoms, kAtoms, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) axis_features(p, i);
    });
  });
  return out;
}

Tensor axis_product_backward(const Tensor& grad, const Tensor& t, int64_t axis) {
  const Op op("axis_product_backward");
  const AxisInputs in(op, grad, t, axis);
  Tensor out = empty(op, {in.atoms, in.rows, in.width}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    const AxisArgs<decltype(zero)> p = in.args<decltype(zero)>(out, true);
    parallel(in.atoms, kAtoms, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) axis_gradients(p, i);
    });
  });
  return out;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("axis_product", TORCH_BOX(&mdops::axis_product));
  m.impl("axis_product_backward", TORCH_BOX(&mdops::axis_product_backward));
}
