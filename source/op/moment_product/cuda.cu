#include "common/cuda.h"
#include "moment_product/gpu_kernels.h"
#include "moment_product/gpu_loops.h"
#include "moment_product/inputs.h"

namespace mdops {

namespace {

Tensor moment_product(const Tensor& moments, const Tensor& tables, const Tensor& rows, const Tensor& kinds) {
  const CudaOp op("moment_product", "moments", moments);
  MomentProductInputs in(op, "moments", moments, tables, rows, kinds, false);
  in.tables = aligned(in.tables);
  Tensor out = empty(op, in.shape(), in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    run_moment_product(op, in.args<T>(in.tables.const_data_ptr<T>(), out));
  });
  return out;
}

Tensor moment_product_backward(const Tensor& grad, const Tensor& tables, const Tensor& rows,
                               const Tensor& kinds) {
  const CudaOp op("moment_product_backward", "grad", grad);
  MomentProductInputs in(op, "grad", grad, tables, rows, kinds, true);
  in.tables = aligned(in.tables);
  Tensor out = empty(op, in.shape(), in.dtype);
  // Atoms without a row have no gradient. Where there are rows for all of them, one without has lost its row
  // to another.
  const bool some = in.count < in.atoms;
  Tensor counts = empty(op, {some ? in.atoms : 0}, ScalarType::Int);
  if (some) op.clear(out), op.clear(counts);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto p = in.args<T>(in.tables.const_data_ptr<T>(), out);
    const int64_t blocks = p.out_size() > 0 ? blocks_for(in.atoms, 256) : 0;
    int32_t* const count = counts.mutable_data_ptr<int32_t>();
    if (some)
      op.launch(gpu_moment_product::count_kernel<T>, blocks_for(in.count, 256), 256, 0, p, count);
    else
      op.launch(gpu_moment_product::mark_kernel<T>, blocks, 256, 0, in.atoms, p.out_size(), p.out);
    Tensor memory = empty(op, {moment_gradients_bytes(p)}, ScalarType::Byte);
    run_moment_gradients(op, p, memory.mutable_data_ptr());
    if (some) op.launch(gpu_moment_product::mark_repeated_kernel<T>, blocks, 256, 0, p, count);
  });
  return out;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("moment_product", TORCH_BOX(&mdops::moment_product));
  m.impl("moment_product_backward", TORCH_BOX(&mdops::moment_product_backward));
}
