#include "common/parallel.h"
#include "harmonic_moment/inputs.h"

namespace mdops {

namespace {

constexpr int64_t kGrain = 8;  // atoms a piece of work, at least

Tensor harmonic_moment(const Tensor& displacements, const Tensor& counts, const Tensor& types,
                       const Tensor& pair_mask, double cutoff, int64_t intervals, int64_t degree) {
  const Op op("harmonic_moment");
  const HarmonicMomentInputs in(op, displacements, counts, types, pair_mask, cutoff, intervals, degree);
  Tensor moments = empty(in.shape(), in.list.dtype);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    parallel(in.list.atoms, kGrain, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(harmonic_moment_forward, args, begin, end, moments.mutable_data_ptr<T>());
    });
  });
  return moments;
}

Tensor harmonic_moment_backward(const Tensor& grad_, const Tensor& slope_, const Tensor& displacements,
                                const Tensor& counts, const Tensor& types, const Tensor& pair_mask,
                                double cutoff, int64_t intervals, int64_t degree) {
  const Op op("harmonic_moment_backward");
  const HarmonicMomentInputs in(op, displacements, counts, types, pair_mask, cutoff, intervals, degree);
  const Tensor grad = in.grad(op, "grad", grad_), slope = in.grad(op, "slope", slope_);
  Tensor result = empty({in.list.atoms, in.list.width, 3}, in.list.dtype);
  dispatch_float(op, in.list.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto args = in.args<T>();
    parallel(in.list.atoms, kGrain, [&](int64_t begin, int64_t end) {
      MDOPS_RUN(harmonic_moment_backward, args, grad.const_data_ptr<T>(), slope.const_data_ptr<T>(), begin,
                end, result.mutable_data_ptr<T>());
    });
  });
  return result;
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("harmonic_moment", TORCH_BOX(&mdops::harmonic_moment));
  m.impl("harmonic_moment_backward", TORCH_BOX(&mdops::harmonic_moment_backward));
}
