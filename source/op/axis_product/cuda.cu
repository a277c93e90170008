#include "axis_product/gpu_kernels.h"
#include "axis_product/inputs.h"
#include "common/cuda.h"

namespace mdops {

namespace {

using namespace gpu_axis;

template <class T>
void launch(const CudaOp& op, void (*copies)(AxisArgs<T>), void (*reads)(AxisArgs<T>), const AxisArgs<T>& p,
            int64_t numbers) {
  const int64_t bytes = numbers * static_cast<int64_t>(sizeof(T));
  if (bytes <= kPlainShared)
    op.launch(copies, p.atoms, kThreads, bytes, p);
  else
    op.launch(reads, p.atoms, kThreads, 0, p);
}

Tensor axis_product(const Tensor& t, int64_t axis) {
  const CudaOp op("axis_product", "t", t);
  const AxisInputs in(op, t, axis);
  Tensor out = empty(op, {in.atoms, in.width * in.axis}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const AxisArgs<T> p = in.args<T>(out, false);
    launch(op, features_kernel<T, true>, features_kernel<T, false>, p, p.t_size());
  });
  return out;
}

Tensor axis_product_backward(const Tensor& grad, const Tensor& t) {
  const CudaOp op("axis_product_backward", "t", t);
  const AxisInputs in(op, grad, t);
  Tensor out = empty(op, {in.atoms, in.rows, in.width}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const AxisArgs<T> p = in.args<T>(out, true);
    launch(op, gradient_kernel<T, true>, gradient_kernel<T, false>, p,
           p.t_size() + in.width * shared_stride(p.axis));
  });
  return out;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("axis_product", TORCH_BOX(&mdops::axis_product));
  m.impl("axis_product_backward", TORCH_BOX(&mdops::axis_product_backward));
}
