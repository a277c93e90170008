#include <cmath>

#include "common/descriptor_args.h"
#include "spline_moment/spline_moment.h"

namespace mdops {

namespace {

constexpr int64_t kGrain = 16;  // atoms a piece of work, at least

struct Inputs : DescriptorInputs {
  Tensor mean;
  double s_max;
  int64_t intervals;
  bool radial;

  Inputs(const char* op, const Tensor& displacements, const Tensor& counts, const Tensor& types,
         const Tensor& mean_, const Tensor& std, const Tensor& pair_mask, double cutoff, double cutoff_smooth,
         double protection, double s_max_, int64_t intervals_, bool radial_)
      : DescriptorInputs(op, displacements, counts, types, std, pair_mask, cutoff, cutoff_smooth, protection),
        mean(input(op, "mean", mean_, dtype, {ntypes})),
        s_max(s_max_),
        intervals(intervals_),
        radial(radial_) {
    if (!(s_max > 0) || !std::isfinite(s_max) || intervals < 1 || intervals > 100000)
      fail(op, "arguments `s_max` and `intervals` are " + std::to_string(s_max) + " and " +
                   std::to_string(intervals) + ", expected s_max > 0 and intervals in 1 .. 100000");
  }

  int64_t basis() const { return intervals + 5; }
  int64_t columns() const { return radial ? 1 : 4; }
  Tensor grad(const char* op, const Tensor& tensor) const {
    return input(op, "grad", tensor, dtype, {atoms, ntypes, basis(), columns()});
  }
  Tensor pair_tensor(const char* op, const char* name, const Tensor& tensor) const {
    return input(op, name, tensor, dtype, {atoms, width, 3});
  }

  template <class T>
  MomentArgs<T> args() const {
    return {displacements.const_data_ptr<T>(),
            counts.const_data_ptr<int32_t>(),
            types.const_data_ptr<int32_t>(),
            mean.const_data_ptr<T>(),
            std.const_data_ptr<T>(),
            reinterpret_cast<const uint8_t*>(pair_mask.const_data_ptr<bool>()),
            cutoff_as<T>(),
            {static_cast<T>(intervals / s_max), static_cast<int>(intervals)},
            width,
            static_cast<int>(ntypes),
            radial};
  }
};

std::tuple<Tensor, Tensor, Tensor> spline_moment(const Tensor& displacements, const Tensor& counts,
                                                 const Tensor& types, const Tensor& mean, const Tensor& std,
                                                 const Tensor& pair_mask, const Tensor& sel_, double cutoff,
                                                 double cutoff_smooth, double protection, double s_max,
                                                 int64_t intervals, bool radial) {
  constexpr const char* op = "spline_moment";
  const Inputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth, protection,
                  s_max, intervals, radial);
  const Tensor sel = input(op, "sel", sel_, ScalarType::Int, {in.ntypes});
  Tensor moments = empty({in.atoms, in.ntypes, in.basis(), in.columns()}, in.dtype);
  Tensor within = empty({in.atoms, in.ntypes}, ScalarType::Int), nearest = empty({in.atoms}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    parallel(in.atoms, kGrain, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(moment_forward, args, sel.const_data_ptr<int32_t>(), begin, end,
                moments.mutable_data_ptr<T>(), within.mutable_data_ptr<int32_t>(),
                nearest.mutable_data_ptr<T>());
    });
  });
  return {moments, within, nearest};
}

Tensor spline_moment_backward(const Tensor& grad_, const Tensor& displacements, const Tensor& counts,
                              const Tensor& types, const Tensor& mean, const Tensor& std,
                              const Tensor& pair_mask, double cutoff, double cutoff_smooth, double protection,
                              double s_max, bool radial) {
  constexpr const char* op = "spline_moment_backward";
  const int64_t intervals = grad_.dim() == 4 ? grad_.size(2) - 5 : 0;
  const Inputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth, protection,
                  s_max, intervals, radial);
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
                         int64_t intervals, bool radial) {
  constexpr const char* op = "spline_moment_jvp";
  const Inputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth, protection,
                  s_max, intervals, radial);
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
                         double s_max, bool radial) {
  constexpr const char* op = "spline_moment_hvp";
  const int64_t intervals = grad_.dim() == 4 ? grad_.size(2) - 5 : 0;
  const Inputs in(op, displacements, counts, types, mean, std, pair_mask, cutoff, cutoff_smooth, protection,
                  s_max, intervals, radial);
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
