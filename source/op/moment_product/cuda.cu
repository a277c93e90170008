#include <type_traits>

#include "common/cuda.h"
#include "moment_product/gpu_double.h"
#include "moment_product/gpu_kernels.h"
#include "moment_product/inputs.h"

namespace mdops {

namespace {

using namespace gpu_product;

// Threads for so many n: as few rounds as can be, of whole warps.
int threads_for(int width) {
  const int rounds = width > 0 ? (width + kMostThreads - 1) / kMostThreads : 1;
  return static_cast<int>(blocks_for(blocks_for(width, rounds), kWarp)) * kWarp;
}

template <int Units, bool Back>
void launch_double(const CudaOp& op, const MomentProductArgs<double>& p) {
  using Tile = DoubleTile<Units, Back>;
  const bool two = (Back ? p.depth : p.width) % 2 == 0;
  const auto kernel = two ? double_kernel<Units, Back, true> : double_kernel<Units, Back, false>;
  const int64_t blocks = blocks_for(p.rows, kTileAtoms) * blocks_for(p.width, Tile::kCols);
  op.launch(kernel, blocks, kDoubleThreads, Tile::kBytes, p);
}

// `table`: of the way back the table itself in float64, and what takes the transposed one otherwise.
template <bool Back, class T>
void launch(const CudaOp& op, const MomentProductArgs<T>& p) {
  if (p.width == 0 || p.columns == 0) return;
  if constexpr (std::is_same_v<T, double>)
    if (p.columns == 4) {
      const auto idle = [&](int units) { return blocks_for(p.width, 16 * units) * 16 * units - p.width; };
      return idle(7) < idle(8) ? launch_double<7, Back>(op, p) : launch_double<8, Back>(op, p);
    }
  const auto kernel = p.columns % 4 == 0 ? product_kernel<T, 4, Back> : product_kernel<T, 1, Back>;
  op.launch(kernel, blocks_for(p.rows, kRows), threads_for(p.width), 0, p);
}

Tensor moment_product(const Tensor& moments, const Tensor& tables, const Tensor& rows, const Tensor& kinds) {
  const CudaOp op("moment_product", "moments", moments);
  MomentProductInputs in(op, "moments", moments, tables, rows, kinds, false);
  in.tables = aligned(in.tables);
  Tensor out = empty(op, in.shape(), in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch<false, T>(op, in.args<T>(in.tables.const_data_ptr<T>(), out));
  });
  return out;
}

Tensor moment_product_backward(const Tensor& grad, const Tensor& tables, const Tensor& rows,
                               const Tensor& kinds) {
  const CudaOp op("moment_product_backward", "grad", grad);
  MomentProductInputs in(op, "grad", grad, tables, rows, kinds, true);
  in.tables = aligned(in.tables);
  Tensor out = empty(op, in.shape(), in.dtype);
  // The tensor cores take a table either way.
  const bool transposes = in.dtype != ScalarType::Double || in.columns != 4;
  Tensor transposed = empty(op, {transposes ? in.tables.numel() : 0}, in.dtype);
  if (in.count < in.atoms) op.clear(out);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const T* table = in.tables.const_data_ptr<T>();
    if (transposes) {
      T* const to = transposed.mutable_data_ptr<T>();
      op.launch(transpose_kernel<T>, blocks_for(in.tables.numel(), 256), 256, 0, table, in.tables.numel(),
                static_cast<int>(in.basis), static_cast<int>(in.width), to);
      table = to;
    }
    const auto p = in.args<T>(table, out);
    if (in.count >= in.atoms && p.out_size() > 0)
      op.launch(mark_kernel<T>, blocks_for(in.atoms, 256), 256, 0, in.atoms, p.out_size(), p.out);
    launch<true, T>(op, p);
  });
  return out;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("moment_product", TORCH_BOX(&mdops::moment_product));
  m.impl("moment_product_backward", TORCH_BOX(&mdops::moment_product_backward));
}
