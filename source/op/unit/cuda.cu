#include "common/cuda.h"
#include "unit/gpu_kernels.h"
#include "unit/inputs.h"

namespace mdops {

namespace {

using namespace gpu_unit;

void run(const CudaOp& op, const UnitInputs& in, Tensor& out, Tensor* by_x = nullptr) {
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    op.launch(unit_kernel<T>, blocks_for(in.rows, kWarps), kWarps * kWarp, 0, in.args<T>(out, by_x));
  });
}

Tensor unit(const Tensor& x) {
  const CudaOp op("unit", "x", x);
  const UnitInputs in(op, x);
  Tensor out = in.result(op);
  run(op, in, out);
  return out;
}

Tensor unit_backward(const Tensor& grad, const Tensor& x) {
  const CudaOp op("unit_backward", "x", x);
  const UnitInputs in(op, x, &grad);
  Tensor out = in.result(op);
  run(op, in, out);
  return out;
}

std::tuple<Tensor, Tensor> unit_backward_backward(const Tensor& direction, const Tensor& grad,
                                                  const Tensor& x) {
  const CudaOp op("unit_backward_backward", "x", x);
  const UnitInputs in(op, x, &grad, &direction);
  Tensor out = in.result(op), by_x = in.result(op);
  run(op, in, out, &by_x);
  return {out, by_x};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("unit", TORCH_BOX(&mdops::unit));
  m.impl("unit_backward", TORCH_BOX(&mdops::unit_backward));
  m.impl("unit_backward_backward", TORCH_BOX(&mdops::unit_backward_backward));
}
