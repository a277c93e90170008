#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "attention_moments/inputs.h"
#include "common/scratch.h"

namespace mdops {

namespace {

struct AttentionMomentsScratch;

using Optional = std::optional<Tensor>;
using Tensors = std::vector<Tensor>;

// For the rows of any of the atoms.
template <class T>
int64_t scratch_bytes(const AttentionMomentsArgs<T>& args) {
  int64_t most = 0;
  for (int64_t i = 0; i < args.attention.sequences; ++i) most = std::max(most, args.attention.length(i));
  return most * MDOPS_RUN(attention_moments_scratch, args) * static_cast<int64_t>(sizeof(T));
}

std::tuple<Tensor, Tensor> attention_moments(const Tensor& rows, const Tensor& environment,
                                             const Tensor& offsets, Tensors inner, Tensors out, Tensors bias,
                                             Tensors project, Tensors project_bias, Tensors factors,
                                             const Tensor& norm_weight, const Tensor& norm_bias,
                                             const Optional& gate, const Optional& switches,
                                             const Optional& absent, std::vector<double> scale, double shift,
                                             double eps, bool normalize, const Optional& plan,
                                             int64_t max_length) {
  const Op op("attention_moments");
  const MomentsInputs in(op, {rows,         environment, offsets,     inner,     out,  bias,      project,
                              project_bias, factors,     norm_weight, norm_bias, gate, switches,  absent,
                              scale,        shift,       eps,         normalize, plan, max_length});
  Tensor moments = empty({in.atoms, 4, in.features}, in.dtype);
  Tensor saved = empty({in.count, in.kept()}, in.dtype);
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    AttentionMomentsArgs<T> args = in.args<T>();
    args.saved = saved.mutable_data_ptr<T>();
    T* const to = moments.mutable_data_ptr<T>();
    std::fill(args.saved, args.saved + in.count * in.kept(), T(0));
    const int64_t bytes = scratch_bytes(args);
    parallel(in.atoms, 1, [&](int64_t begin, int64_t end) {
      const ScratchMemory<AttentionMomentsScratch> memory(op, bytes);
      for (int64_t atom = begin; atom < end; ++atom)
        MDOPS_RUN(attention_moments_forward, args, atom, to + 4 * atom * in.features,
                  static_cast<T*>(memory.data()));
    });
  });
  return {moments, saved};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_moments_backward(
    const Tensor& grad, const Tensor& saved, const Tensor& rows, const Tensor& environment,
    const Tensor& offsets, Tensors inner, Tensors out, Tensors bias, Tensors project, Tensors project_bias,
    Tensors factors, const Tensor& norm_weight, const Tensor& norm_bias, const Optional& gate,
    const Optional& switches, const Optional& absent, std::vector<double> scale, double shift, double eps,
    bool normalize, const Optional& plan, int64_t max_length) {
  const Op op("attention_moments_backward");
  const MomentsInputs in(op, {rows,         environment, offsets,     inner,     out,  bias,      project,
                              project_bias, factors,     norm_weight, norm_bias, gate, switches,  absent,
                              scale,        shift,       eps,         normalize, plan, max_length});
  const Tensor by = input(op, "grad", grad, in.dtype, {in.atoms, 4, in.features});
  const Tensor kept = input(op, "saved", saved, in.dtype, {in.count, in.kept()});
  MomentsGradients found{empty({in.count, in.columns}, in.dtype), empty({in.count, 4}, in.dtype),
                         in.gate ? empty({in.count, 3}, in.dtype) : empty({0}, in.dtype),
                         in.switches ? empty({in.count}, in.dtype) : empty({0}, in.dtype)};
  dispatch_float(op, in.dtype, [&](auto zero) {
    using T = decltype(zero);
    AttentionMomentsArgs<T> args = in.args<T>();
    args.saved = const_cast<T*>(kept.const_data_ptr<T>());  // which this pass reads alone
    args.grad = by.const_data_ptr<T>();
    const AttentionMomentsResults<T> results = found.results<T>(in);
    const int64_t bytes = scratch_bytes(args);
    parallel(in.atoms, 1, [&](int64_t begin, int64_t end) {
      const ScratchMemory<AttentionMomentsScratch> memory(op, bytes);
      for (int64_t atom = begin; atom < end; ++atom)
        MDOPS_RUN(attention_moments_backward, args, atom, results, static_cast<T*>(memory.data()));
    });
  });
  return {found.rows, found.environment, found.gate, found.switches};
}

}  // namespace

}  // namespace mdops

STABLE_TORCH_LIBRARY_IMPL(mdops, CPU, m) {
  m.impl("attention_moments", TORCH_BOX(&mdops::attention_moments));
  m.impl("attention_moments_backward", TORCH_BOX(&mdops::attention_moments_backward));
}
