#include <algorithm>
#include <type_traits>

#include "common/cuda.h"
#include "spline_moment/args.h"
#include "spline_moment/gpu_kernels.h"

namespace mdops {

namespace {

using namespace gpu_moment;

// Warps of a block of which each needs this much shared memory; 0 if not even one has it.
int warps_for(int64_t bytes) {
  return static_cast<int>(std::min<int64_t>(kMostWarps, kPlainShared / bytes));
}

// work(columns, gate), constants both.
template <class T, class Work>
void with_kind(const MomentArgs<T>& args, const Work& work) {
  if (args.radial)
    work(std::integral_constant<int, 1>{}, std::false_type{});
  else if (args.gated)
    work(std::integral_constant<int, 4>{}, std::true_type{});
  else
    work(std::integral_constant<int, 4>{}, std::false_type{});
}

template <bool Tangent, class T>
void launch_moments(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms, const T* tangent, T* moments,
                    int32_t* within, T* nearest) {
  with_kind(args, [&](auto columns, auto gated) {
    constexpr int64_t stage = sizeof(Staged<T, Tangent>);
    const int64_t sums = sizeof(T) * type_sums<columns()>(args.basis()) * Lanes<columns(), true>::kCopies;
    const bool fits = warps_for(stage + sums) > 0;
    const int warps = warps_for(fits ? stage + sums : stage);
    op.launch(fits ? moment_kernel<columns(), gated(), true, T, Tangent>
                   : moment_kernel<columns(), gated(), false, T, Tangent>,
              blocks_for(atoms, warps), warps * kWarp, warps * (fits ? stage + sums : stage), args, atoms,
              tangent, moments, within, nearest);
  });
}

template <bool Second, class T>
void launch_pull(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms, const T* tangent, const T* grad,
                 T* out) {
  with_kind(args, [&](auto columns, auto gated) {
    constexpr Gate gate = gated() ? Gate::alone : Gate::none;
    const int64_t buffer = sizeof(T) * 3 * kWarp, copy = sizeof(T) * padded_size<columns()>(args.basis());
    const bool fits = warps_for(buffer + copy) > 0;
    const int warps = warps_for(fits ? buffer + copy : buffer);
    op.launch(
        fits ? pull_kernel<columns(), gate, Second, true, T> : pull_kernel<columns(), gate, Second, false, T>,
        blocks_for(atoms, warps), warps * kWarp, warps * (fits ? buffer + copy : buffer), args, atoms,
        tangent, grad, out);
  });
}

std::tuple<Tensor, Tensor, Tensor> spline_moment(const Tensor& displacements, const Tensor& counts,
                                                 const Tensor& types, const Tensor& mean, const Tensor& std,
                                                 const Tensor& pair_mask, const Tensor& zeroed,
                                                 const Tensor& sel, const Tensor& padding, double cutoff,
                                                 double cutoff_smooth, double protection, double s_max,
                                                 int64_t intervals, bool radial, bool gated) {
  const CudaOp op("spline_moment", "displacements", displacements);
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals, radial, gated);
  const PlaceInputs places(op, zeroed, sel, padding, in.atoms, in.ntypes);
  Tensor moments = empty(op, {in.atoms, in.ntypes, in.basis(), in.columns()}, in.dtype);
  Tensor within = empty(op, {in.atoms, in.ntypes}, ScalarType::Int);
  Tensor nearest = empty(op, {in.atoms}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_moments<false>(op, in.args<T>(places), in.atoms, static_cast<const T*>(nullptr),
                          moments.mutable_data_ptr<T>(), within.mutable_data_ptr<int32_t>(),
                          nearest.mutable_data_ptr<T>());
  });
  return {moments, within, nearest};
}

Tensor spline_moment_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& counts,
                              const Tensor& types, const Tensor& mean, const Tensor& std,
                              const Tensor& pair_mask, double cutoff, double cutoff_smooth, double protection,
                              double s_max, bool radial, bool gated) {
  const CudaOp op("spline_moment_backward", "displacements", displacements);
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals_of(grad_), radial, gated);
  const Tensor grad = in.grad(op, grad_);
  Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_pull<false>(op, in.args<T>(), in.atoms, static_cast<const T*>(nullptr), grad.const_data_ptr<T>(),
                       result.mutable_data_ptr<T>());
  });
  return result;
}

Tensor spline_moment_jvp(const Tensor& tangent_, const Tensor& displacements, const Tensor& counts,
                         const Tensor& types, const Tensor& mean, const Tensor& std, const Tensor& pair_mask,
                         double cutoff, double cutoff_smooth, double protection, double s_max,
                         int64_t intervals, bool radial, bool gated) {
  const CudaOp op("spline_moment_jvp", "displacements", displacements);
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals, radial, gated);
  const Tensor tangent = in.pair_tensor(op, "tangent", tangent_);
  Tensor result = empty(op, {in.atoms, in.ntypes, in.basis(), in.columns()}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_moments<true>(op, in.args<T>(), in.atoms, tangent.const_data_ptr<T>(),
                         result.mutable_data_ptr<T>(), nullptr, static_cast<T*>(nullptr));
  });
  return result;
}

Tensor spline_moment_hvp(const Tensor& tangent_, const Tensor& grad_, const Tensor& displacements,
                         const Tensor& counts, const Tensor& types, const Tensor& mean, const Tensor& std,
                         const Tensor& pair_mask, double cutoff, double cutoff_smooth, double protection,
                         double s_max, bool radial, bool gated) {
  const CudaOp op("spline_moment_hvp", "displacements", displacements);
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals_of(grad_), radial, gated);
  const Tensor tangent = in.pair_tensor(op, "tangent", tangent_), grad = in.grad(op, grad_);
  Tensor result = empty(op, {in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_pull<true>(op, in.args<T>(), in.atoms, tangent.const_data_ptr<T>(), grad.const_data_ptr<T>(),
                      result.mutable_data_ptr<T>());
  });
  return result;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CUDA, m) {
  m.impl("spline_moment", TORCH_BOX(&mdops::spline_moment));
  m.impl("spline_moment_backward", TORCH_BOX(&mdops::spline_moment_backward));
  m.impl("spline_moment_jvp", TORCH_BOX(&mdops::spline_moment_jvp));
  m.impl("spline_moment_hvp", TORCH_BOX(&mdops::spline_moment_hvp));
}
