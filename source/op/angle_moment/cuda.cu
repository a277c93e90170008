#include <algorithm>
#include <type_traits>

#include "angle_moment/gpu_kernels.h"
#include "angle_moment/inputs.h"
#include "common/cuda.h"

namespace mdops {

namespace {

using namespace gpu_angle;

// Blocks, of one warp each, that go through all atoms where their memory is global: enough to keep a GPU
// busy.
constexpr int64_t kBlocksOfAll = 4096;

// kernel(args, front..., memory of so many bytes for each block, back...) for all atoms.
template <class Kernel, class Launch>
void with_memory(const CudaOp& op, Kernel kernel, int64_t atoms, int64_t bytes, const Launch& launch) {
  if (bytes <= op.limits().shared_bytes) {
    launch(kernel, atoms, bytes, static_cast<char*>(nullptr));
    return;
  }
  const int64_t blocks = std::min(atoms, kBlocksOfAll);
  Tensor memory = empty(op, {blocks, bytes}, ScalarType::Byte);
  launch(kernel, blocks, int64_t{0}, static_cast<char*>(memory.mutable_data_ptr()));
}

// work(gate), a constant: none or alone.
template <class Work>
void with_gate(bool gated, const Work& work) {
  if (gated)
    work(std::integral_constant<Gate, Gate::alone>{});
  else
    work(std::integral_constant<Gate, Gate::none>{});
}

// The same of features: none or beside.
template <class Work>
void with_gates(bool gated, const Work& work) {
  if (gated)
    work(std::integral_constant<Gate, Gate::beside>{});
  else
    work(std::integral_constant<Gate, Gate::none>{});
}

template <bool Tangents, class T>
void launch_moments(const CudaOp& op, const AngleArgs<T>& args, int64_t atoms, const T* tangent, T* moments,
                    int32_t* within, T* nearest) {
  with_gate(args.gated, [&](auto gate) {
    const int64_t bytes = warp_bytes<Tangents, false, gate()>(args, 0);
    with_memory(op, moment_kernel<gate(), Tangents, T>, atoms, bytes,
                [&](auto kernel, int64_t blocks, int64_t shared, char* memory) {
                  op.launch(kernel, blocks, kWarp, shared, args, atoms, tangent, memory, bytes, moments,
                            within, nearest);
                });
  });
}

template <bool Second, class T>
void launch_pull(const CudaOp& op, const AngleArgs<T>& args, int64_t atoms, const T* tangent, const T* grad,
                 T* out) {
  with_gate(args.gated, [&](auto gate) {
    const int64_t bytes = warp_bytes<Second, true, gate()>(args, 0);
    with_memory(op, pull_kernel<gate(), Second, T>, atoms, bytes,
                [&](auto kernel, int64_t blocks, int64_t shared, char* memory) {
                  op.launch(kernel, blocks, kWarp, shared, args, atoms, tangent, grad, memory, bytes, out);
                });
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
    with_gates(functions.gated != nullptr, [&](auto gate) {
      const int64_t bytes = warp_bytes<false, false, gate()>(args, functions.channels);
      with_memory(op, features_kernel<gate(), T>, in.atoms, bytes,
                  [&](auto kernel, int64_t blocks, int64_t shared, char* memory) {
                    op.launch(kernel, blocks, kWarp, shared, args, functions, in.atoms, memory, bytes,
                              features.mutable_data_ptr<T>(), within.mutable_data_ptr<int32_t>(),
                              nearest.mutable_data_ptr<T>());
                  });
    });
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
    with_gates(functions.gated != nullptr, [&](auto gate) {
      const int64_t bytes = warp_bytes<false, true, gate()>(args, functions.channels);
      with_memory(op, features_pull_kernel<gate(), T>, in.atoms, bytes,
                  [&](auto kernel, int64_t blocks, int64_t shared, char* memory) {
                    op.launch(kernel, blocks, kWarp, shared, args, functions, in.atoms,
                              grad.const_data_ptr<T>(), memory, bytes, result.mutable_data_ptr<T>());
                  });
    });
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
