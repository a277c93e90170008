#include <tuple>

#include "unit/inputs.h"

namespace mdops {

namespace {

void run(const Op& op, const UnitInputs& in, Tensor& out, Tensor* by_x = nullptr) {
  dispatch_float(op, in.dtype, [&](auto zero) {
    const UnitArgs<decltype(zero)> args = in.args<decltype(zero)>(out, by_x);
    parallel(in.rows, 256, [&](int64_t begin, int64_t end) { MDOPS_RUN(unit_rows, args, begin, end); });
  });
}

Tensor unit(const Tensor& x) {
  const Op op("unit");
  const UnitInputs in(op, x);
  Tensor out = in.result(op);
  run(op, in, out);
  return out;
}

Tensor unit_backward(const Tensor& grad, const Tensor& x) {
  const Op op("unit_backward");
  const UnitInputs in(op, x, &grad);
  Tensor out = in.result(op);
  run(op, in, out);
  return out;
}

std::tuple<Tensor, Tensor> unit_backward_backward(const Tensor& direction, const Tensor& grad,
                                                  const Tensor& x) {
  const Op op("unit_backward_backward");
  const UnitInputs in(op, x, &grad, &direction);
  Tensor out = in.result(op), by_x = in.result(op);
  run(op, in, out, &by_x);
  return {out, by_x};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("unit", TORCH_BOX(&mdops::unit));
  m.impl("unit_backward", TORCH_BOX(&mdops::unit_backward));
  m.impl("unit_backward_backward", TORCH_BOX(&mdops::unit_backward_backward));
}
