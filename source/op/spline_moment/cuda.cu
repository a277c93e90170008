#include <algorithm>

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

template <int Columns, bool Tangent, class T>
void launch_moments(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms, const T* tangent,
                    const int32_t* sel, T* moments, int32_t* within, T* nearest) {
  constexpr int64_t stage = sizeof(Staged<T, Tangent>);
  const int64_t sums = sizeof(T) * type_sums<Columns>(args.basis()) * Lanes<Columns, true>::kCopies;
  const bool fits = warps_for(stage + sums) > 0;
  const int warps = warps_for(fits ? stage + sums : stage);
  op.launch(fits ? moment_kernel<Columns, true, T, Tangent> : moment_kernel<Columns, false, T, Tangent>,
            blocks_for(atoms, warps), warps * kWarp, warps * (fits ? stage + sums : stage), args, atoms,
            tangent, sel, moments, within, nearest);
}

template <bool Tangent, class T>
void launch_moments(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms, const T* tangent,
                    const int32_t* sel, T* moments, int32_t* within, T* nearest) {
  args.radial ? launch_moments<1, Tangent>(op, args, atoms, tangent, sel, moments, within, nearest)
              : launch_moments<4, Tangent>(op, args, atoms, tangent, sel, moments, within, nearest);
}

template <int Columns, bool Second, class T>
void launch_pull(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms, const T* tangent, const T* grad,
                 T* out) {
  const int64_t buffer = sizeof(T) * 3 * kWarp, copy = sizeof(T) * padded_size<Columns>(args.basis());
  const bool fits = warps_for(buffer + copy) > 0;
  const int warps = warps_for(fits ? buffer + copy : buffer);
  op.launch(fits ? pull_kernel<Columns, Second, true, T> : pull_kernel<Columns, Second, false, T>,
            blocks_for(atoms, warps), warps * kWarp, warps * (fits ? buffer + copy : buffer), args, atoms,
            tangent, grad, out);
}

template <bool Second, class T>
void launch_pull(const CudaOp& op, const MomentArgs<T>& args, int64_t atoms, const T* tangent, const T* grad,
                 T* out) {
  args.radial ? launch_pull<1, Second>(op, args, atoms, tangent, grad, out)
              : launch_pull<4, Second>(op, args, atoms, tangent, grad, out);
}

std::tuple<Tensor, Tensor, Tensor> spline_moment(const Tensor& displacements, const Tensor& counts,
                                                 const Tensor& types, const Tensor& mean, const Tensor& std,
                                                 const Tensor& pair_mask, const Tensor& sel_, double cutoff,
                                                 double cutoff_smooth, double protection, double s_max,
                                                 int64_t intervals, bool radial) {
  const CudaOp op("spline_moment", "displacements", displacements);
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals, radial);
  const Tensor sel = input(op, "sel", sel_, ScalarType::Int, {in.ntypes});
  Tensor moments = empty(op, {in.atoms, in.ntypes, in.basis(), in.columns()}, in.dtype);
  Tensor within = empty(op, {in.atoms, in.ntypes}, ScalarType::Int);
  Tensor nearest = empty(op, {in.atoms}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_moments<false>(op, in.args<T>(), in.atoms, static_cast<const T*>(nullptr),
                          sel.const_data_ptr<int32_t>(), moments.mutable_data_ptr<T>(),
                          within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<T>());
  });
  return {moments, within, nearest};
}

Tensor spline_moment_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& counts,
                              const Tensor& types, const Tensor& mean, const Tensor& std,
                              const Tensor& pair_mask, double cutoff, double cutoff_smooth, double protection,
                              double s_max, bool radial) {
  const CudaOp op("spline_moment_backward", "displacements", displacements);
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals_of(grad_), radial);
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
                         int64_t intervals, bool radial) {
  const CudaOp op("spline_moment_jvp", "displacements", displacements);
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals, radial);
  const Tensor tangent = in.pair_tensor(op, "tangent", tangent_);
  Tensor result = empty(op, {in.atoms, in.ntypes, in.basis(), in.columns()}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_moments<true>(op, in.args<T>(), in.atoms, tangent.const_data_ptr<T>(), nullptr,
                         result.mutable_data_ptr<T>(), nullptr, static_cast<T*>(nullptr));
  });
  return result;
}

Tensor spline_moment_hvp(const Tensor& tangent_, const Tensor& grad_, const Tensor& displacements,
                         const Tensor& counts, const Tensor& types, const Tensor& mean, const Tensor& std,
                         const Tensor& pair_mask, double cutoff, double cutoff_smooth, double protection,
                         double s_max, bool radial) {
  const CudaOp op("spline_moment_hvp", "displacements", displacements);
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals_of(grad_), radial);
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
