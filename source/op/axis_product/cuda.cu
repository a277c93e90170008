#include "axis_product/gpu_loops.h"
#include "axis_product/inputs.h"
#include "common/cuda.h"

namespace mdops {

namespace {

Tensor axis_product(const Tensor& t, int64_t axis, const std::optional<Tensor>& behind) {
  const CudaOp op("axis_product", "t", t);
  const AxisInputs in(op, t, axis, behind);
  Tensor out = empty(op, {in.atoms, in.row_size()}, in.dtype);
  dispatch_float(op, in.dtype,
                 [&](auto zero) { run_axis_features(op, in.args<decltype(zero)>(out, false)); });
  return out;
}

Tensor axis_product_backward(const Tensor& grad, const Tensor& t, int64_t axis) {
  const CudaOp op("axis_product_backward", "t", t);
  const AxisInputs in(op, grad, t, axis);
  Tensor out = empty(op, {in.atoms, in.rows, in.width}, in.dtype);
  dispatch_float(op, in.dtype,
                 [&](auto zero) { run_axis_gradients(op, in.args<decltype(zero)>(out, true)); });
  return out;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("axis_product", TORCH_BOX(&mdops::axis_product));
  m.impl("axis_product_backward", TORCH_BOX(&mdops::axis_product_backward));
}
