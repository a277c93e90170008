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

// Whether the kernels for four rows take it.
template <class T>
bool has_four(const AxisArgs<T>& p, int64_t numbers) {
  return p.rows == 4 && p.axis <= kMostAxis && numbers * static_cast<int64_t>(sizeof(T)) <= kPlainShared;
}

Tensor axis_product(const Tensor& t, int64_t axis) {
  const CudaOp op("axis_product", "t", t);
  const AxisInputs in(op, t, axis);
  Tensor out = empty(op, {in.atoms, in.width * in.axis}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const AxisArgs<T> p = in.args<T>(out, false);
    if (has_four(p, p.t_size()))
      return op.launch(four_features_kernel<T>, p.atoms, kFourThreads, p.t_size() * sizeof(T), p);
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
    const int64_t numbers =
        p.t_size() + whole_fours(p.width * shared_stride(p.axis)) + 4 * (kFourThreads / p.axis) * p.axis;
    if (has_four(p, numbers))
      return op.launch(four_gradient_kernel<T>, p.atoms, kFourThreads, numbers * sizeof(T), p);
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
