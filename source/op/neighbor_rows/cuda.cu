#include <tuple>
#include <type_traits>

#include "common/cuda.h"
#include "neighbor_rows/gpu_kernels.h"
#include "neighbor_rows/inputs.h"

namespace mdops {

namespace {

using namespace gpu_neighbor_rows;

// work(numbers at once), a constant: 4 of float32 where all of these rows begin on 16 bytes.
template <class T, class Work>
void with_numbers(int64_t channels, std::initializer_list<const T*> rows, const Work& work) {
  if constexpr (std::is_same_v<T, float>) {
    bool wide = channels % 4 == 0;
    for (const T* row : rows) wide &= reinterpret_cast<uintptr_t>(row) % 16 == 0;
    if (wide) return work(std::integral_constant<int, 4>{});
  }
  work(std::integral_constant<int, 1>{});
}

// work(gated), a constant.
template <class Work>
void with_gate(bool gated, const Work& work) {
  if (gated)
    work(std::true_type{});
  else
    work(std::false_type{});
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> neighbor_rows(const Tensor& displacements,
                                                                 const Tensor& counts, const Tensor& types,
                                                                 const Tensor& pair_mask,
                                                                 const Tensor& zeroed, double cutoff) {
  const CudaOp op("neighbor_rows", "displacements", displacements);
  const RowListInputs in(op, displacements, counts, types, pair_mask, zeroed, cutoff);
  const int64_t atoms = in.list.atoms, slots_size = atoms * in.list.width;
  Tensor offsets = empty(op, {atoms + 1}, ScalarType::Int);
  Tensor slots = empty(op, {slots_size}, ScalarType::Int);
  Tensor taken = empty(op, {atoms}, ScalarType::Int), within = empty(op, {atoms}, ScalarType::Int);
  Tensor nearest = empty(op, {atoms}, in.list.dtype);
  op.check(cudaMemsetAsync(slots.mutable_data_ptr(), 0xff, sizeof(int32_t) * slots_size, op.stream()));
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    const RowListResults<T> out{offsets.mutable_data_ptr<int32_t>(), slots.mutable_data_ptr<int32_t>(),
                                taken.mutable_data_ptr<int32_t>(), within.mutable_data_ptr<int32_t>(),
                                nearest.mutable_data_ptr<T>()};
    const auto args = in.args<T>();
    const int64_t blocks = blocks_for(atoms, kWarps);
    op.launch(count_kernel<T>, blocks, kWarps * kWarp, 0, args, out);
    op.launch(scan_kernel, 1, kScanThreads, 0, out.offsets, atoms);
    op.launch(fill_kernel<T>, blocks, kWarps * kWarp, 0, args, out);
  });
  return {offsets, slots, taken, within, nearest};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> spline_rows(const Tensor& displacements, const Tensor& slots,
                                                       const Tensor& counts, const Tensor& types,
                                                       const Tensor& mean, const Tensor& std,
                                                       const Tensor& table, double cutoff,
                                                       double cutoff_smooth, double protection, double s_max,
                                                       int64_t rows, bool gated) {
  const CudaOp op("spline_rows", "displacements", displacements);
  const SplineRowsInputs in(op, displacements, slots, counts, types, mean, std, table, cutoff, cutoff_smooth,
                            protection, s_max, rows, gated);
  SplineRowsTensors out(op, in);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    const auto results = out.results<T>();
    with_numbers<T>(in.channels, {args.table, results.g}, [&](auto at_once) {
      with_gate(gated, [&](auto gate) {
        op.launch(rows_kernel<T, gate(), at_once()>, blocks_for(rows, kWarps * kWarp), kWarps * kWarp, 0,
                  args, results);
      });
    });
  });
  return {out.environment, out.switches, out.directions, out.g};
}

Tensor spline_rows_backward(const Tensor& grad_environment, const Tensor& grad_switch,
                            const Tensor& grad_directions, const Tensor& grad_g, const Tensor& displacements,
                            const Tensor& slots, const Tensor& counts, const Tensor& types,
                            const Tensor& mean, const Tensor& std, const Tensor& table, double cutoff,
                            double cutoff_smooth, double protection, double s_max, int64_t rows, bool gated) {
  const CudaOp op("spline_rows_backward", "displacements", displacements);
  const SplineRowsInputs in(op, displacements, slots, counts, types, mean, std, table, cutoff, cutoff_smooth,
                            protection, s_max, rows, gated);
  const SplineRowsTensors grad(op, in, grad_environment, grad_switch, grad_directions, grad_g);
  Tensor out = zeros(op, {in.list.atoms, in.list.width, 3}, in.list.dtype);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    const auto gradients = grad.gradients<T>();
    with_numbers<T>(in.channels, {args.table, gradients.g}, [&](auto at_once) {
      with_gate(gated, [&](auto gate) {
        op.launch(rows_backward_kernel<T, gate(), at_once()>, blocks_for(rows, kWarps * kWarp),
                  kWarps * kWarp, 0, args, gradients, out.mutable_data_ptr<T>());
      });
    });
  });
  return out;
}

Tensor row_moments(const Tensor& environment, const Tensor& g, const Tensor& offsets) {
  const CudaOp op("row_moments", "environment", environment);
  const RowMomentInputs in(op, environment, g, offsets);
  Tensor out = empty(op, {in.atoms, 4, in.channels}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    with_numbers<T>(in.channels, {args.g}, [&](auto at_once) {
      op.launch(moments_kernel<T, at_once()>, in.atoms, kAtomWarps * kWarp, 0, args,
                out.mutable_data_ptr<T>());
    });
  });
  return out;
}

std::tuple<Tensor, Tensor> row_moments_backward(const Tensor& grad_, const Tensor& environment,
                                                const Tensor& g, const Tensor& offsets) {
  const CudaOp op("row_moments_backward", "environment", environment);
  const RowMomentInputs in(op, environment, g, offsets);
  const Tensor grad = in.grad(op, grad_);
  Tensor by_environment = empty(op, {in.rows, 4}, in.dtype),
         by_g = empty(op, {in.rows, in.channels}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    T *const to_environment = by_environment.mutable_data_ptr<T>(), *const to_g = by_g.mutable_data_ptr<T>();
    op.launch(clear_rows_kernel<T>, in.rows > 0 ? 2 * op.limits().multiprocessors : 0, 256, 0, args,
              to_environment, to_g);
    with_numbers<T>(in.channels, {args.g, grad.const_data_ptr<T>(), to_g}, [&](auto at_once) {
      op.launch(moments_backward_kernel<T, at_once()>, in.atoms, kAtomWarps * kWarp, 0, args,
                grad.const_data_ptr<T>(), to_environment, to_g);
    });
  });
  return {by_environment, by_g};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("neighbor_rows", TORCH_BOX(&mdops::neighbor_rows));
  m.impl("spline_rows", TORCH_BOX(&mdops::spline_rows));
  m.impl("spline_rows_backward", TORCH_BOX(&mdops::spline_rows_backward));
  m.impl("row_moments", TORCH_BOX(&mdops::row_moments));
  m.impl("row_moments_backward", TORCH_BOX(&mdops::row_moments_backward));
}
