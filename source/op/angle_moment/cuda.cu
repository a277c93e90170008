#include <type_traits>

#include "angle_moment/gpu_loops.h"
#include "angle_moment/gpu_memory.h"
#include "angle_moment/inputs.h"
#include "common/cuda.h"

namespace mdops {

namespace {

using namespace gpu_angle;

// work(gate), a constant: none or alone.
template <class Work>
void with_gate(bool gated, const Work& work) {
  if (gated)
    work(std::integral_constant<Gate, Gate::alone>{});
  else
    work(std::integral_constant<Gate, Gate::none>{});
}

template <bool Tangents, class T>
void launch_moments(const CudaOp& op, const AngleArgs<T>& args, int64_t atoms, const T* tangent, T* moments,
                    int32_t* within, T* nearest) {
  with_gate(args.gated, [&](auto gate) {
    const WarpMemory m(op.limits(), warp_bytes<Tangents, false, gate()>(args, 0), atoms);
    Tensor memory = empty(op, {m.global()}, ScalarType::Byte);
    op.launch(moment_kernel<gate(), Tangents, T>, m.blocks, kWarp, m.shared, args, atoms, tangent,
              m.of(memory.mutable_data_ptr()), m.bytes, moments, within, nearest);
  });
}

template <bool Second, class T>
void launch_pull(const CudaOp& op, const AngleArgs<T>& args, int64_t atoms, const T* tangent, const T* grad,
                 T* out) {
  with_gate(args.gated, [&](auto gate) {
    const WarpMemory m(op.limits(), warp_bytes<Second, true, gate()>(args, 0), atoms);
    Tensor memory = empty(op, {m.global()}, ScalarType::Byte);
    op.launch(pull_kernel<gate(), Second, T>, m.blocks, kWarp, m.shared, args, atoms, tangent, grad,
              m.of(memory.mutable_data_ptr()), m.bytes, out);
  });
}

std::tuple<Tensor, Tensor, Tensor> angle_moment(const Tensor& displacements, const Tensor& counts,
                                                const Tensor& types, const Tensor& std,
                                                const Tensor& pair_mask, double cutoff, double cutoff_smooth,
                                                double protection, int64_t exponent, int64_t octaves,
                                                int64_t fineness, bool gated) {
  const CudaOp op("angle_moment", "displacements", displacements);
  const AngleInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                       exponent, octaves, fineness, gated);
  Tensor moments = empty(op, {in.atoms, in.pairs(), in.pieces(), kAnglePowers}, in.dtype);
  Tensor within = empty(op, {in.atoms, in.ntypes}, ScalarType::Int);
  Tensor nearest = empty(op, {in.atoms}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_moments<false>(op, in.args<T>(), in.atoms, static_cast<const T*>(nullptr),
                          moments.mutable_data_ptr<T>(), within.mutable_data_ptr<int32_t>(),
                          nearest.mutable_data_ptr<T>());
  });
  return {moments, within, nearest};
}

Tensor angle_moment_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& counts,
                             const Tensor& types, const Tensor& std, const Tensor& pair_mask, double cutoff,
                             double cutoff_smooth, double protection, int64_t exponent, int64_t octaves,
                             int64_t fineness, bool gated) {
  const CudaOp op("angle_moment_backward", "displacements", displacements);
  const AngleInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                       exponent, octaves, fineness, gated);
  const Tensor grad = in.grad(op, grad_);
  Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_pull<false>(op, in.args<T>(), in.atoms, static_cast<const T*>(nullptr), grad.const_data_ptr<T>(),
                       result.mutable_data_ptr<T>());
  });
  return result;
}

Tensor angle_moment_jvp(const Tensor& tangent_, const Tensor& displacements, const Tensor& counts,
                        const Tensor& types, const Tensor& std, const Tensor& pair_mask, double cutoff,
                        double cutoff_smooth, double protection, int64_t exponent, int64_t octaves,
                        int64_t fineness, bool gated) {
  const CudaOp op("angle_moment_jvp", "displacements", displacements);
  const AngleInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                       exponent, octaves, fineness, gated);
  const Tensor tangent = in.pair_tensor(op, "tangent", tangent_);
  Tensor result = empty(op, {in.atoms, in.pairs(), in.pieces(), kAnglePowers}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_moments<true>(op, in.args<T>(), in.atoms, tangent.const_data_ptr<T>(),
                         result.mutable_data_ptr<T>(), static_cast<int32_t*>(nullptr),
                         static_cast<T*>(nullptr));
  });
  return result;
}

Tensor angle_moment_hvp(const Tensor& tangent_, const Tensor& grad_, const Tensor& displacements,
                        const Tensor& counts, const Tensor& types, const Tensor& std, const Tensor& pair_mask,
                        double cutoff, double cutoff_smooth, double protection, int64_t exponent,
                        int64_t octaves, int64_t fineness, bool gated) {
  const CudaOp op("angle_moment_hvp", "displacements", displacements);
  const AngleInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                       exponent, octaves, fineness, gated);
  const Tensor tangent = in.pair_tensor(op, "tangent", tangent_), grad = in.grad(op, grad_);
  Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_pull<true>(op, in.args<T>(), in.atoms, tangent.const_data_ptr<T>(), grad.const_data_ptr<T>(),
                      result.mutable_data_ptr<T>());
  });
  return result;
}

std::tuple<Tensor, Tensor, Tensor> angle_features(const Tensor& displacements, const Tensor& counts,
                                                  const Tensor& types, const Tensor& std,
                                                  const Tensor& pair_mask, const Tensor& tables_,
                                                  const Tensor& gates, double cutoff, double cutoff_smooth,
                                                  double protection, int64_t exponent, int64_t octaves,
                                                  int64_t fineness) {
  const CudaOp op("angle_features", "displacements", displacements);
  const AngleInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                       exponent, octaves, fineness, false);
  AngleTableInputs tables(op, in, tables_, gates);
  tables.plain = aligned(tables.plain), tables.gated = aligned(tables.gated);
  Tensor features = empty(op, {in.atoms, tables.channels}, in.dtype);
  Tensor within = empty(op, {in.atoms, in.ntypes}, ScalarType::Int);
  Tensor nearest = empty(op, {in.atoms}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    const auto functions = tables.as<T>();
    Tensor memory = empty(op, {angle_features_bytes(op, args, functions, in.atoms)}, ScalarType::Byte);
    run_angle_features(op, args, functions, in.atoms, memory.mutable_data_ptr(),
                       features.mutable_data_ptr<T>(), within.mutable_data_ptr<int32_t>(),
                       nearest.mutable_data_ptr<T>());
  });
  return {features, within, nearest};
}

Tensor angle_features_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& counts,
                               const Tensor& types, const Tensor& std, const Tensor& pair_mask,
                               const Tensor& tables_, const Tensor& gates, double cutoff,
                               double cutoff_smooth, double protection, int64_t exponent, int64_t octaves,
                               int64_t fineness) {
  const CudaOp op("angle_features_backward", "displacements", displacements);
  const AngleInputs in(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection,
                       exponent, octaves, fineness, false);
  const AngleTableInputs tables(op, in, tables_, gates);
  const Tensor grad = input(op, "grad", grad_, in.dtype, {in.atoms, tables.channels});
  Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    const auto functions = tables.as<T>();
    Tensor memory = empty(op, {angle_gradients_bytes(op, args, functions, in.atoms)}, ScalarType::Byte);
    run_angle_gradients(op, args, functions, in.atoms, grad.const_data_ptr<T>(), memory.mutable_data_ptr(),
                        result.mutable_data_ptr<T>());
  });
  return result;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("angle_moment", TORCH_BOX(&mdops::angle_moment));
  m.impl("angle_moment_backward", TORCH_BOX(&mdops::angle_moment_backward));
  m.impl("angle_moment_jvp", TORCH_BOX(&mdops::angle_moment_jvp));
  m.impl("angle_moment_hvp", TORCH_BOX(&mdops::angle_moment_hvp));
  m.impl("angle_features", TORCH_BOX(&mdops::angle_features));
  m.impl("angle_features_backward", TORCH_BOX(&mdops::angle_features_backward));
}
