#include "spline_moment/args.h"

namespace mdops {

namespace {

constexpr int64_t kGrain = 16;  // atoms a piece of work, at least

std::tuple<Tensor, Tensor, Tensor> spline_moment(const Tensor& displacements, const Tensor& counts,
                                                 const Tensor& types, const Tensor& mean, const Tensor& std,
                                                 const Tensor& pair_mask, const Tensor& zeroed,
                                                 const Tensor& sel, const Tensor& padding, double cutoff,
                                                 double cutoff_smooth, double protection, double s_max,
                                                 int64_t intervals, bool radial, bool gated) {
  constexpr const char* op = "spline_moment";
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals, radial, gated);
  const PlaceInputs places(op, zeroed, sel, padding, in.atoms, in.ntypes);
  Tensor moments = empty({in.atoms, in.ntypes, in.basis(), in.columns()}, in.dtype);
  Tensor within = empty({in.atoms, in.ntypes}, ScalarType::Int), nearest = empty({in.atoms}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>(places);
    parallel(in.atoms, kGrain, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(moment_forward, args, begin, end, moments.mutable_data_ptr<T>(),
                within.mutable_data_ptr<int32_t>(), nearest.mutable_data_ptr<T>());
    });
  });
  return {moments, within, nearest};
}

Tensor spline_moment_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& counts,
                              const Tensor& types, const Tensor& mean, const Tensor& std,
                              const Tensor& pair_mask, double cutoff, double cutoff_smooth, double protection,
                              double s_max, bool radial, bool gated) {
  constexpr const char* op = "spline_moment_backward";
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals_of(grad_), radial, gated);
  const Tensor grad = in.grad(op, grad_);
  Tensor result = empty({in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    parallel(in.atoms, kGrain, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(moment_backward, args, grad.const_data_ptr<T>(), begin, end, result.mutable_data_ptr<T>());
    });
  });
  return result;
}

Tensor spline_moment_jvp(const Tensor& tangent_, const Tensor& displacements, const Tensor& counts,
                         const Tensor& types, const Tensor& mean, const Tensor& std, const Tensor& pair_mask,
                         double cutoff, double cutoff_smooth, double protection, double s_max,
                         int64_t intervals, bool radial, bool gated) {
  constexpr const char* op = "spline_moment_jvp";
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals, radial, gated);
  const Tensor tangent = in.pair_tensor(op, "tangent", tangent_);
  Tensor result = empty({in.atoms, in.ntypes, in.basis(), in.columns()}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    parallel(in.atoms, kGrain, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(moment_jvp, args, tangent.const_data_ptr<T>(), begin, end, result.mutable_data_ptr<T>());
    });
  });
  return result;
}

Tensor spline_moment_hvp(const Tensor& tangent_, const Tensor& grad_, const Tensor& displacements,
                         const Tensor& counts, const Tensor& types, const Tensor& mean, const Tensor& std,
                         const Tensor& pair_mask, double cutoff, double cutoff_smooth, double protection,
                         double s_max, bool radial, bool gated) {
  constexpr const char* op = "spline_moment_hvp";
  const MomentInputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth,
                        protection, s_max, intervals_of(grad_), radial, gated);
  const Tensor tangent = in.pair_tensor(op, "tangent", tangent_), grad = in.grad(op, grad_);
  Tensor result = empty({in.atoms, in.width, 3}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    parallel(in.atoms, kGrain, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(moment_hvp, args, tangent.const_data_ptr<T>(), grad.const_data_ptr<T>(), begin, end,
                result.mutable_data_ptr<T>());
    });
  });
  return result;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("spline_moment", TORCH_BOX(&mdops::spline_moment));
  m.impl("spline_moment_backward", TORCH_BOX(&mdops::spline_moment_backward));
  m.impl("spline_moment_jvp", TORCH_BOX(&mdops::spline_moment_jvp));
  m.impl("spline_moment_hvp", TORCH_BOX(&mdops::spline_moment_hvp));
}
